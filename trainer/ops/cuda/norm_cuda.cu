// A thread takes the same columns whatever the dtypes and wherever the rows begin, so these do not
// change the order of a sum.
#include <algorithm>
#include <limits>

#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/norm_backends.h"
#include "trainer/runtime/kernel.h"

namespace fsdp {
namespace {

constexpr int kNormPiece = 8;            // Columns side by side that a thread takes at once.
constexpr int kNormHeld = 2;             // Pieces that it keeps in registers.
constexpr int kNormWarps = 512 / kWarp;  // Most warps of a block.
// Where a block has several rows, all of them together have at most this many columns.
constexpr int kNormColumnsOfBlock = 256 * kNormPiece * kNormHeld;

// Threads of a block: x along a row, part of a warp or whole ones, at most `most`; y over rows.
dim3 NormBlock(int64_t cols, int64_t most) {
  const int64_t held = CeilDiv(cols, kNormPiece * kNormHeld);
  if (held <= 8) return dim3(8, 32);
  if (held <= 16) return dim3(16, 16);
  const auto along = static_cast<unsigned>(std::min<int64_t>(CeilDiv(held, kWarp) * kWarp, most));
  return dim3(along, std::max(1u, 256 / along));
}

// The rows of a tensor: NormRows in the form for kernels.
template <typename T>
struct DeviceRows {
  T* first;
  int64_t inner, stride;
  int cols;

  __device__ T* At(int64_t row) const {
    if (inner == 1) return first + row * stride;
    return first + row / inner * stride + row % inner * cols;
  }
};
template <typename T, typename AnyView>
auto RowsOf(const NormRows<AnyView>& rows, const NormShape& shape) {
  if (shape.cols > std::numeric_limits<int>::max()) throw DeviceError("a norm of 2^31 columns");
  auto* const first = rows.tensor.template As<T>() + rows.first;
  return DeviceRows<std::remove_reference_t<decltype(*first)>>{first, shape.inner, rows.stride,
                                                               static_cast<int>(shape.cols)};
}
template <typename T>
bool InPacks(const DeviceRows<T>& rows) {
  using Element = std::remove_const_t<T>;
  return fsdp::InPacks<Element>(rows.first, rows.stride) &&
         (rows.inner == 1 || rows.cols % kPack<Element> == 0);
}

// A thread's part of one row of each of n tensors of one shape. Some pieces are held, others are
// read again each time. `cols`: 0 where there is no row.
template <typename T, int n>
struct RowInHand {
  using Piece = Elements<T, kNormPiece>;

  const T* rows[n];
  int cols;
  bool packs;
  Piece held[kNormHeld][n];

  __device__ RowInHand(const T* const (&at)[n], int columns, bool in_packs)
      : cols(columns), packs(in_packs) {
#pragma unroll
    for (int t = 0; t < n; ++t) rows[t] = at[t];
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) ReadAt(First(k), held[k]);
  }
  // Calls body(pieces of the n rows, their first column) for each piece of this thread.
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) {
      if (First(k) < cols) body(held[k], First(k));
    }
#pragma unroll 1
    for (int k = kNormHeld; First(k) < cols; ++k) {
      Piece again[n];
      ReadAt(First(k), again);
      body(again, First(k));
    }
  }

 private:
  __device__ static int First(int k) {
    return static_cast<int>((threadIdx.x + k * blockDim.x) * kNormPiece);
  }
  __device__ void ReadAt(int first, Piece (&pieces)[n]) const {
#pragma unroll
    for (int t = 0; t < n; ++t) pieces[t].Read(rows[t] + first, cols - first, packs);
  }
};

// Sums each of n numbers over the threads of a row, which all get the sums. Every thread of the
// block calls it. `shared`: used by nobody else from the call to the next barrier, which may be
// that of a call with another array.
template <int n>
__device__ void SumOverRow(float (&sums)[n], float (&shared)[kNormWarps][n]) {
  const int lanes = min(static_cast<int>(blockDim.x), kWarp);
  for (int step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], step);
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps <= 1) return;
  const int first = static_cast<int>(threadIdx.y) * warps;
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int i = 0; i < n; ++i) shared[first + threadIdx.x / kWarp][i] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < n; ++i) {
    sums[i] = shared[first][i];
    for (int w = 1; w < warps; ++w) sums[i] += shared[first + w][i];
  }
}

// Writes the sums over a block's rows, for n gradients of `cols` columns: gradient g's begin at
// partial + g stride. `sums`: those of this thread's held pieces over the rows that it has handled.
// Every thread of the block calls it.
template <int n>
__device__ void PutColumnSums(const float (&sums)[n][kNormHeld][kNormPiece], int64_t cols,
                              int64_t stride, float* partial) {
  __shared__ float of_rows[kNormColumnsOfBlock];
#pragma unroll
  for (int g = 0; g < n; ++g) {
    float* const to = blockDim.y == 1 ? partial + g * stride : of_rows + threadIdx.y * cols;
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) {
      const int64_t first = int64_t{threadIdx.x + k * blockDim.x} * kNormPiece;
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        if (first + j < cols) to[first + j] = sums[g][k][j];
      }
    }
    if (blockDim.y == 1) continue;
    __syncthreads();
    const int64_t thread = threadIdx.y * blockDim.x + threadIdx.x;
    for (int64_t j = thread; j < cols; j += blockDim.x * blockDim.y) {
      float sum = of_rows[j];
      for (int y = 1; y < static_cast<int>(blockDim.y); ++y) sum += of_rows[y * cols + j];
      partial[g * stride + j] = sum;
    }
    __syncthreads();
  }
}

// kMean: LayerNorm; otherwise RMSNorm, without mean and bias. The two divide by the number of
// columns in different ways, which decide their bits.
template <bool kMean>
__device__ float OverColumns(float sum, int cols) {
  if constexpr (kMean) {
    return sum * (1.0f / static_cast<float>(cols));
  } else {
    return sum / static_cast<float>(cols);
  }
}
template <bool kMean>
__device__ float Centred(float x, float mean) {
  if constexpr (kMean) {
    return x - mean;
  } else {
    return x;
  }
}

// Threads per row, at most. LayerNorm's backward holds sums for two gradients.
template <bool kMean>
constexpr int kThreads = kMean ? 256 : 512;

template <typename T, bool kMean>
__global__ void __launch_bounds__(kThreads<kMean>)
    NormForwardRows(DeviceRows<const T> x, DeviceWeight<T> w, DeviceWeight<T> b, int64_t rows,
                    float eps, bool packs, DeviceRows<T> y, float* mean_out, float* r_out) {
  __shared__ float of_squares[kNormWarps][1];
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int64_t here = row < rows ? row : 0;
  const RowInHand<T, 1> in({x.At(here)}, row < rows ? x.cols : 0, packs);
  float mean = 0;
  if constexpr (kMean) {
    __shared__ float of_sum[kNormWarps][1];
    float sum[1] = {0};
    in.ForEach([&](const auto& piece, int) {
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) sum[0] += piece[0][j];
    });
    SumOverRow(sum, of_sum);
    mean = OverColumns<kMean>(sum[0], x.cols);
  }
  // A second pass, not mean(x^2) - mean^2: that loses every digit where the mean is large.
  float squares[1] = {0};
  in.ForEach([&](const auto& piece, int first) {
#pragma unroll
    for (int j = 0; j < kNormPiece; ++j) {
      // Elements behind the last column are zero; less the mean they would count.
      const float d = !kMean || first + j < x.cols ? Centred<kMean>(piece[0][j], mean) : 0.0f;
      squares[0] = __fmaf_rn(d, d, squares[0]);
    }
  });
  SumOverRow(squares, of_squares);
  const float r = 1.0f / sqrtf(OverColumns<kMean>(squares[0], x.cols) + eps);
  T* const to = y.At(here);
  in.ForEach([&](const auto& piece, int first) {
    float weight[kNormPiece];
    [[maybe_unused]] float bias[kNormPiece];
    Elements<T, kNormPiece> out;
    float values[kNormPiece];
    w.Read(first, x.cols - first, packs, weight);
    if constexpr (kMean) b.Read(first, x.cols - first, packs, bias);
#pragma unroll
    for (int j = 0; j < kNormPiece; ++j) {
      const float xhat = Centred<kMean>(piece[0][j], mean) * r;
      if constexpr (kMean) {
        values[j] = __fmaf_rn(xhat, weight[j], bias[j]);
      } else {
        values[j] = weight[j] * xhat;
      }
    }
    out.Set(values);
    out.Write(to + first, x.cols - first, packs);
  });
  if (row < rows && threadIdx.x == 0) {
    if constexpr (kMean) mean_out[row] = mean;
    r_out[row] = r;
  }
}

// The number of parameters' gradients: dw, and db.
template <bool kMean>
constexpr int kGradients = kMean ? 2 : 1;

// Their sums for the pieces that a thread holds of rows.
template <bool kMean>
struct ParameterGradients {
  float sums[kGradients<kMean>][kNormHeld][kNormPiece] = {};

  template <typename T>
  __device__ void Add(const RowInHand<T, 2>& in, float mean, float r) {
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) {
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        const float dy = in.held[k][1][j];
        sums[0][k][j] = __fmaf_rn(dy, Centred<kMean>(in.held[k][0][j], mean) * r, sums[0][k][j]);
        if constexpr (kMean) sums[1][k][j] += dy;
      }
    }
  }
};

// Block b has the rows from b rows / blocks on. `partial`: null where no parameter's gradient is
// wanted.
template <typename T, bool kMean>
__global__ void __launch_bounds__(kThreads<kMean>, kMean && sizeof(T) == 2 ? 2 : 1)
    NormBackwardRows(DeviceRows<const T> x, DeviceWeight<T> w, const float* mean_in,
                     const float* r_in, DeviceRows<const T> dy, int64_t rows, bool packs, bool add,
                     DeviceRows<T> dx, float* partial) {
  constexpr int kSums = kMean ? 2 : 1;  // Over a row: of g xhat, and before it of g = w dy.
  __shared__ float shared[2][kNormWarps][kSums];
  const int cols = x.cols;
  const int64_t block = blockIdx.x, blocks = gridDim.x;
  const int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
  if (partial != nullptr) partial += block * kGradients<kMean> * cols;

  // Columns that are not held, while dy is there: dx may take its place. One row a block.
  const int held = static_cast<int>(blockDim.x) * kNormHeld * kNormPiece;
  for (int tile = held; tile < cols && partial != nullptr; tile += held) {
    ParameterGradients<kMean> gradients;
    for (int64_t row = begin; row < end; ++row) {
      const RowInHand<T, 2> in({x.At(row) + tile, dy.At(row) + tile}, cols - tile, packs);
      gradients.Add(in, kMean ? mean_in[row] : 0.0f, r_in[row]);
    }
    PutColumnSums(gradients.sums, cols - tile, cols, partial + tile);
  }

  ParameterGradients<kMean> gradients;
  int turn = 0;
  for (int64_t first_row = begin; first_row < end; first_row += blockDim.y, turn ^= 1) {
    const bool mine = first_row + threadIdx.y < end;
    const int64_t row = mine ? first_row + threadIdx.y : begin;
    T* const to = dx.At(row);
    const RowInHand<T, 2> in({x.At(row), dy.At(row)}, mine ? cols : 0, packs);
    const float mean = kMean && mine ? mean_in[row] : 0.0f, r = mine ? r_in[row] : 0.0f;
    float sums[kSums] = {};
    in.ForEach([&](const auto& piece, int first) {
      float weight[kNormPiece];
      w.Read(first, cols - first, packs, weight);
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        const float g = weight[j] * piece[1][j], xhat = Centred<kMean>(piece[0][j], mean) * r;
        if constexpr (kMean) sums[0] = __fmaf_rn(weight[j], piece[1][j], sums[0]);
        sums[kSums - 1] = __fmaf_rn(g, xhat, sums[kSums - 1]);
      }
    });
    gradients.Add(in, mean, r);
    SumOverRow(sums, shared[turn]);
    const float mean_g = OverColumns<kMean>(sums[0], cols);
    const float mean_gx = OverColumns<kMean>(sums[kSums - 1], cols);
    in.ForEach([&](const auto& piece, int first) {
      float weight[kNormPiece];
      Elements<T, kNormPiece> out;
      if (add) out.Read(to + first, cols - first, packs);
      float values[kNormPiece];
      w.Read(first, cols - first, packs, weight);
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        const float xhat = Centred<kMean>(piece[0][j], mean) * r;
        float g;
        if constexpr (kMean) {
          g = __fmaf_rn(weight[j], piece[1][j], -mean_g);
        } else {
          g = weight[j] * piece[1][j];
        }
        const float d = r * __fmaf_rn(-xhat, mean_gx, g);
        values[j] = add ? out[j] + d : d;
      }
      out.Set(values);
      out.Write(to + first, cols - first, packs);
    });
  }
  if (partial != nullptr) PutColumnSums(gradients.sums, min(cols, held), cols, partial);
}

template <typename G>
__global__ void NormAddParameterGradient(const float* partial, int64_t blocks, int64_t stride,
                                         int64_t cols, G* gradient) {
  AddColumnSums(partial, blocks, stride, cols, gradient);
}

// Calls body(T, kMean) with types that hold them.
template <typename Body>
void ForNorm(DType dtype, bool has_mean, const Body& body) {
  ForFloat(dtype, [&](auto is) {
    if (has_mean) {
      body(is, std::true_type());
    } else {
      body(is, std::false_type());
    }
  });
}

}  // namespace

void NormForwardCuda(CudaStreamHandle stream, const NormShape& shape, const NormRows<ConstView>& x,
                     const ConstView& w, const std::optional<ConstView>& b, float eps,
                     const NormRows<View>& y, const std::optional<View>& mean, const View& r) {
  ForNorm(x.tensor.dtype, mean.has_value(), [&](auto is, auto has_mean) {
    using T = typename decltype(is)::type;
    constexpr bool kMean = decltype(has_mean)::value;
    const dim3 block = NormBlock(shape.cols, kThreads<kMean>);
    const dim3 grid(static_cast<unsigned>(CeilDiv(shape.rows(), block.y)));
    const auto from = RowsOf<T>(x, shape);
    const auto to = RowsOf<T>(y, shape);
    const bool packs =
        InPacks(from) && InPacks(to) && IsAligned(w.data) && (!b || IsAligned(b->data));
    Launch<NormForwardRows<T, kMean>>(stream, grid, block, 0, from, WeightOf<T>(w),
                                      b ? WeightOf<T>(*b) : DeviceWeight<T>(), shape.rows(), eps,
                                      packs, to, DataOrNull<float>(mean), r.As<float>());
  });
}

void NormBackwardCuda(CudaStreamHandle stream, const NormShape& shape, const NormRows<ConstView>& x,
                      const ConstView& w, const std::optional<ConstView>& mean, const ConstView& r,
                      const NormRows<ConstView>& dy, int64_t blocks, bool add,
                      const NormRows<View>& dx, const std::optional<View>& dw,
                      const std::optional<View>& db, const View& workspace) {
  const int64_t cols = shape.cols, stride = (mean ? 2 : 1) * cols;
  float* const partial = dw || db ? workspace.As<float>() : nullptr;
  ForNorm(x.tensor.dtype, mean.has_value(), [&](auto is, auto has_mean) {
    using T = typename decltype(is)::type;
    constexpr bool kMean = decltype(has_mean)::value;
    const auto from = RowsOf<T>(x, shape), gradient = RowsOf<T>(dy, shape);
    const auto to = RowsOf<T>(dx, shape);
    const bool packs = InPacks(from) && InPacks(gradient) && InPacks(to) && IsAligned(w.data);
    Launch<NormBackwardRows<T, kMean>>(stream, dim3(static_cast<unsigned>(blocks)),
                                       NormBlock(cols, kThreads<kMean>), 0, from, WeightOf<T>(w),
                                       DataOrNull<float>(mean), r.As<float>(), gradient,
                                       shape.rows(), packs, add, to, partial);
  });
  for (int part = 0; part < 2; ++part) {
    const std::optional<View>& out = part == 0 ? dw : db;
    if (!out) continue;
    ForFloat(out->dtype, [&](auto is) {
      using G = typename decltype(is)::type;
      Launch<NormAddParameterGradient<G>>(stream, ColumnSumsGrid(cols), ColumnSumsBlock(), 0,
                                          partial + part * cols, blocks, stride, cols,
                                          out->As<G>());
    });
  }
}

}  // namespace fsdp
