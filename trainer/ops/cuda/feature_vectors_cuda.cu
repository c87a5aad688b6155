#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/feature_backends.h"

namespace fsdp {
namespace {

// Columns of rows that lie in rows of other lengths.
template <typename T>
__global__ void CopyColumns(const T* from, int64_t from_cols, int64_t rows, int64_t cols,
                            bool packs, T* to, int64_t to_cols) {
  ForEachPiece(rows, CeilDiv(cols, kPack<T>), [&](int64_t row, int64_t piece) {
    const int64_t col = piece * kPack<T>;
    Elements<T, kPack<T>> elements;
    elements.Read(from + row * from_cols + col, cols - col, packs);
    elements.Write(to + row * to_cols + col, cols - col, packs);
  });
}

template <typename T>
void LaunchCopy(CudaStreamHandle stream, const T* from, int64_t from_cols, int64_t rows,
                int64_t cols, T* to, int64_t to_cols) {
  if (rows == 0 || cols == 0) return;
  const RowGrid on = GridOfRows(rows, CeilDiv(cols, kPack<T>));
  const bool packs = InPacks(from, from_cols) && InPacks(to, to_cols);
  Launch<CopyColumns<T>>(stream, on.grid, on.block, 0, from, from_cols, rows, cols, packs, to,
                         to_cols);
}

// Row (s, j) of y is column j of sample s of x.
template <typename T>
__global__ void SwapRows(const T* x, int64_t rows, int64_t n, int64_t cols, T* y) {
  ForEachPiece(rows, n, [&](int64_t row, int64_t i) {
    y[row * n + i] = x[(row / cols * n + i) * cols + row % cols];
  });
}

// The i of a pair, i (i - 1) / 2 <= pair; a root in fp32 is off by one at most.
__device__ inline int64_t LaterOfPair(int64_t pair) {
  auto i = static_cast<int64_t>((1 + sqrtf(1 + 8 * static_cast<float>(pair))) / 2);
  if (i * (i - 1) / 2 > pair) --i;
  if (i * (i + 1) / 2 <= pair) ++i;
  return i;
}

template <typename T>
__global__ void PairDots(const T* x, int64_t samples, int64_t n, int64_t cols, float scale, T* y) {
  const int64_t pairs = n * (n - 1) / 2;
  ForEachPiece(samples, pairs, [&](int64_t sample, int64_t pair) {
    const int64_t i = LaterOfPair(pair), j = pair - i * (i - 1) / 2;
    const T *left = x + (sample * n + i) * cols, *right = x + (sample * n + j) * cols;
    float sum = 0;
    for (int64_t k = 0; k < cols; ++k) sum = __fmaf_rn(ToFloat(left[k]), ToFloat(right[k]), sum);
    y[sample * pairs + pair] = FromFloat<T>(scale * sum);
  });
}

template <typename T>
__global__ void PairDotsGradient(const T* x, const T* dy, int64_t rows, int64_t n, int64_t cols,
                                 float scale, T* dx) {
  const int64_t pairs = n * (n - 1) / 2;
  ForEachPiece(rows, cols, [&](int64_t row, int64_t col) {
    const int64_t sample = row / n, i = row % n;
    const T *of_pairs = dy + sample * pairs, *vectors = x + sample * n * cols + col;
    float sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (j == i) continue;
      const int64_t pair = j < i ? i * (i - 1) / 2 + j : j * (j - 1) / 2 + i;
      sum = __fmaf_rn(scale * ToFloat(of_pairs[pair]), ToFloat(vectors[j * cols]), sum);
    }
    dx[row * cols + col] = FromFloat<T>(sum);
  });
}

template <typename T>
__global__ void MultiplyElements(const T* a, const T* b, int64_t n, bool packs, T* y) {
  constexpr int kPiece = kPack<T>;
  const int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPiece;
  if (at >= n) return;
  Elements<T, kPiece> left, right, out;
  left.Read(a + at, n - at, packs);
  right.Read(b + at, n - at, packs);
  float product[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) product[i] = left[i] * right[i];
  out.Set(product);
  out.Write(y + at, n - at, packs);
}

template <typename T>
__global__ void MultiplyGradients(const T* a, const T* b, const T* dy, int64_t n, bool packs, T* da,
                                  T* db) {
  constexpr int kPiece = kPack<T>;
  const int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPiece;
  if (at >= n) return;
  Elements<T, kPiece> left, right, d, out;
  left.Read(a + at, n - at, packs);
  right.Read(b + at, n - at, packs);
  d.Read(dy + at, n - at, packs);
  float product[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) product[i] = d[i] * right[i];
  out.Set(product);
  out.Write(da + at, n - at, packs);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) product[i] = d[i] * left[i];
  out.Set(product);
  out.Write(db + at, n - at, packs);
}

constexpr unsigned kThreads = 256;
template <typename T>
dim3 GridOfElements(int64_t n) {
  return dim3(static_cast<unsigned>(CeilDiv(CeilDiv(n, kPack<T>), kThreads)));
}

}  // namespace

void JoinColumnsCuda(CudaStreamHandle stream, const ConstView& a, const ConstView& b,
                     const View& y) {
  ForFloat(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = y.shape[0], cols = y.shape[1], p = a.shape[1], q = b.shape[1];
    LaunchCopy(stream, a.As<T>(), p, rows, p, y.As<T>(), cols);
    LaunchCopy(stream, b.As<T>(), q, rows, q, y.As<T>() + p, cols);
  });
}

void SplitColumnsCuda(CudaStreamHandle stream, const ConstView& y, const View& a, const View& b) {
  ForFloat(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = y.shape[0], cols = y.shape[1], p = a.shape[1], q = b.shape[1];
    LaunchCopy(stream, y.As<T>(), cols, rows, p, a.As<T>(), p);
    LaunchCopy(stream, y.As<T>() + p, cols, rows, q, b.As<T>(), q);
  });
}

void SwapVectorsCuda(CudaStreamHandle stream, const ConstView& x, int64_t samples, const View& y) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t n = x.shape[0] / samples, cols = x.shape[1], rows = samples * cols;
    const RowGrid on = GridOfRows(rows, n);
    Launch<SwapRows<T>>(stream, on.grid, on.block, 0, x.As<T>(), rows, n, cols, y.As<T>());
  });
}

void PairDotsForwardCuda(CudaStreamHandle stream, const ConstView& x, float scale, const View& y) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t samples = y.shape[0];
    const RowGrid on = GridOfRows(samples, y.shape[1]);
    Launch<PairDots<T>>(stream, on.grid, on.block, 0, x.As<T>(), samples, x.shape[0] / samples,
                        x.shape[1], scale, y.As<T>());
  });
}

void PairDotsBackwardCuda(CudaStreamHandle stream, const ConstView& x, float scale,
                          const ConstView& dy, const View& dx) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = x.shape[0], cols = x.shape[1];
    const RowGrid on = GridOfRows(rows, cols);
    Launch<PairDotsGradient<T>>(stream, on.grid, on.block, 0, x.As<T>(), dy.As<T>(), rows,
                                rows / dy.shape[0], cols, scale, dx.As<T>());
  });
}

void MultiplyForwardCuda(CudaStreamHandle stream, const ConstView& a, const ConstView& b,
                         const View& y) {
  const int64_t n = y.NumElements();
  ForFloat(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const bool packs = IsAligned(a.data) && IsAligned(b.data) && IsAligned(y.data);
    Launch<MultiplyElements<T>>(stream, GridOfElements<T>(n), dim3(kThreads), 0, a.As<T>(),
                                b.As<T>(), n, packs, y.As<T>());
  });
}

void MultiplyBackwardCuda(CudaStreamHandle stream, const ConstView& a, const ConstView& b,
                          const ConstView& dy, const View& da, const View& db) {
  const int64_t n = dy.NumElements();
  ForFloat(dy.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const bool packs = IsAligned(a.data) && IsAligned(b.data) && IsAligned(dy.data) &&
                       IsAligned(da.data) && IsAligned(db.data);
    Launch<MultiplyGradients<T>>(stream, GridOfElements<T>(n), dim3(kThreads), 0, a.As<T>(),
                                 b.As<T>(), dy.As<T>(), n, packs, da.As<T>(), db.As<T>());
  });
}

}  // namespace fsdp
