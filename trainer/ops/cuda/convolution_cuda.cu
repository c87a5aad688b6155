#include "trainer/ops/convolution_backends.h"
#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/gemm/gemm.h"

namespace fsdp {
namespace {

// Three products of one form, C[m, n] = A[m, k] B[k, n] for each group. Their factors are unfolded
// while they are read. Tiles are 64 x 64, with kDepth of k at a time; sums go over k in order, by
// fused multiply-add.
constexpr int kTile = 64, kDepth = 16, kThreads = 256, kSide = 16, kEach = 4;

struct Sizes {
  int64_t height, width, in, out;
  int64_t kernel_width, taps, stride, padding_height, padding_width;
  int64_t out_height, out_width;
  int64_t group_in, group_out;
  int64_t m, n, k;         // Per group.
  int64_t groups, slices;  // `slices`: of k.
};

Sizes SizesOf(const ConvolutionShape& s, int64_t m, int64_t n, int64_t k, int64_t slices) {
  const ConvolutionWindow& w = s.window;
  return {s.height,
          s.width,
          s.in,
          s.out,
          s.kernel_width,
          s.taps(),
          w.stride,
          w.padding_height,
          w.padding_width,
          s.out_height(),
          s.out_width(),
          s.group_in(),
          s.group_out(),
          m,
          n,
          k,
          w.groups,
          slices};
}

// A pixel of a tensor [samples, height, width, ...].
struct Pixel {
  int64_t sample, row, col;
};
__device__ inline Pixel PixelOf(int64_t at, int64_t height, int64_t width) {
  const int64_t line = at / width;
  return {line / height, line % height, at % width};
}

// x where tap `tap` of the kernel at pixel `to` of y looks, in one channel of a group.
template <typename T>
__device__ inline float LookAt(const Sizes& s, const T* x, const Pixel& to, int64_t tap,
                               int64_t channel) {
  const int64_t row = to.row * s.stride + tap / s.kernel_width - s.padding_height;
  const int64_t col = to.col * s.stride + tap % s.kernel_width - s.padding_width;
  if (row < 0 || row >= s.height || col < 0 || col >= s.width) return 0;
  return ToFloat(x[((to.sample * s.height + row) * s.width + col) * s.in + channel]);
}

// y = sum over (tap, channel): m pixels of y, n outputs of a group.
template <typename T>
struct ForwardFactors {
  const T* x;
  DeviceWeight<T> w;
  T* y;

  using Row = Pixel;
  __device__ Row RowOf(const Sizes& s, int64_t row) const {
    return PixelOf(row, s.out_height, s.out_width);
  }
  __device__ float A(const Sizes& s, int64_t group, const Row& row, int64_t, int64_t k) const {
    return LookAt(s, x, row, k / s.group_in, group * s.group_in + k % s.group_in);
  }
  __device__ float B(const Sizes& s, int64_t group, int64_t k, int64_t col) const {
    const int64_t tap = k / s.group_in, channel = k % s.group_in;
    return w.At(((group * s.group_out + col) * s.group_in + channel) * s.taps + tap);
  }
  __device__ void C(const Sizes& s, int64_t group, int64_t, int64_t row, int64_t col,
                    float sum) const {
    y[row * s.out + group * s.group_out + col] = FromFloat<T>(sum);
  }
};

// dx = sum over (tap, output): m pixels of x, n channels of a group.
template <typename T>
struct DxFactors {
  const T* dy;
  DeviceWeight<T> w;
  T* dx;

  using Row = Pixel;
  __device__ Row RowOf(const Sizes& s, int64_t row) const {
    return PixelOf(row, s.height, s.width);
  }
  __device__ float A(const Sizes& s, int64_t group, const Row& at, int64_t, int64_t k) const {
    const int64_t tap = k / s.group_out, output = group * s.group_out + k % s.group_out;
    const int64_t down = at.row + s.padding_height - tap / s.kernel_width;
    const int64_t right = at.col + s.padding_width - tap % s.kernel_width;
    if (down < 0 || right < 0 || down % s.stride != 0 || right % s.stride != 0) return 0;
    const int64_t row = down / s.stride, col = right / s.stride;
    if (row >= s.out_height || col >= s.out_width) return 0;
    return ToFloat(dy[((at.sample * s.out_height + row) * s.out_width + col) * s.out + output]);
  }
  __device__ float B(const Sizes& s, int64_t group, int64_t k, int64_t col) const {
    const int64_t tap = k / s.group_out, output = k % s.group_out;
    return w.At(((group * s.group_out + output) * s.group_in + col) * s.taps + tap);
  }
  __device__ void C(const Sizes& s, int64_t group, int64_t, int64_t row, int64_t col,
                    float sum) const {
    dx[row * s.in + group * s.group_in + col] = FromFloat<T>(sum);
  }
};

// A slice's part of dw = sum over pixels: m outputs of a group, n channels and taps.
template <typename T>
struct DwFactors {
  const T* dy;
  const T* x;
  float* parts;  // [slices, out, channels, taps]

  using Row = int64_t;
  __device__ Row RowOf(const Sizes&, int64_t row) const { return row; }
  __device__ float A(const Sizes& s, int64_t group, Row row, int64_t, int64_t k) const {
    return ToFloat(dy[k * s.out + group * s.group_out + row]);
  }
  __device__ float B(const Sizes& s, int64_t group, int64_t k, int64_t col) const {
    const Pixel to = PixelOf(k, s.out_height, s.out_width);
    return LookAt(s, x, to, col / s.group_in, group * s.group_in + col % s.group_in);
  }
  __device__ void C(const Sizes& s, int64_t group, int64_t slice, int64_t row, int64_t col,
                    float sum) const {
    const int64_t tap = col / s.group_in, channel = col % s.group_in;
    const int64_t output = slice * s.out + group * s.group_out + row;
    parts[(output * s.group_in + channel) * s.taps + tap] = sum;
  }
};

template <typename Factors>
__global__ void Unfolded(Sizes s, Factors f) {
  __shared__ float a_tile[kDepth][kTile + 1], b_tile[kDepth][kTile + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = int64_t{kTile} * blockIdx.x, first_col = int64_t{kTile} * blockIdx.y;
  const int64_t group = blockIdx.z % s.groups, slice = blockIdx.z / s.groups;
  const int64_t begin = s.k * slice / s.slices, end = s.k * (slice + 1) / s.slices;
  // A thread reads one k of kEach rows of A, and one column of kEach k of B.
  const int a_k = thread % kDepth, a_row = thread / kDepth;
  const int b_col = thread % kTile, b_k = thread / kTile;
  typename Factors::Row rows[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) rows[i] = f.RowOf(s, first_row + a_row + i * kSide);
  const int row = thread / kSide * kEach, col = thread % kSide * kEach;
  float sums[kEach][kEach] = {};
  for (int64_t k = begin; k < end; k += kDepth) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = first_row + a_row + i * kSide;
      a_tile[a_k][a_row + i * kSide] =
          at < s.m && k + a_k < end ? f.A(s, group, rows[i], at, k + a_k) : 0.0f;
      const int step = b_k + i * (kThreads / kTile);
      b_tile[step][b_col] = first_col + b_col < s.n && k + step < end
                                ? f.B(s, group, k + step, first_col + b_col)
                                : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kDepth; ++step) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums[i][j] = __fmaf_rn(a_tile[step][row + i], b_tile[step][col + j], sums[i][j]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (first_row + row + i < s.m && first_col + col + j < s.n) {
        f.C(s, group, slice, first_row + row + i, first_col + col + j, sums[i][j]);
      }
    }
  }
}

template <typename Factors>
void LaunchUnfolded(CudaStreamHandle stream, const Sizes& s, const Factors& factors) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(s.m, kTile)),
                  static_cast<unsigned>(CeilDiv(s.n, kTile)),
                  static_cast<unsigned>(s.groups * s.slices));
  Launch<Unfolded<Factors>>(stream, grid, dim3(kThreads), 0, s, factors);
}

template <typename G>
__global__ void AddSlices(const float* parts, int64_t n, int64_t slices, G* dw) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int64_t slice = 0; slice < slices; ++slice) sum += parts[slice * n + i];
  dw[i] = FromFloat<G>(ToFloat(dw[i]) + sum);
}

// Every stride-th pixel of x, side by side.
template <typename T>
__global__ void PickRows(const T* x, Sizes s, int64_t rows, T* to) {
  ForEachPiece(rows, s.in, [&](int64_t row, int64_t col) {
    const Pixel at = PixelOf(row, s.out_height, s.out_width);
    const int64_t line = at.sample * s.height + at.row * s.stride;
    to[row * s.in + col] = x[(line * s.width + at.col * s.stride) * s.in + col];
  });
}

// Back, with zeros between them.
template <typename T>
__global__ void SpreadRows(const T* from, Sizes s, int64_t rows, T* dx) {
  ForEachPiece(rows, s.in, [&](int64_t row, int64_t col) {
    const Pixel at = PixelOf(row, s.height, s.width);
    const bool seen = at.row % s.stride == 0 && at.col % s.stride == 0;
    const int64_t line = at.sample * s.out_height + at.row / s.stride;
    dx[row * s.in + col] =
        seen ? from[(line * s.out_width + at.col / s.stride) * s.in + col] : FromFloat<T>(0);
  });
}

void PickPixels(CudaStreamHandle stream, const ConvolutionShape& s, const ConstView& x,
                const View& to) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = s.out_pixels();
    const RowGrid on = GridOfRows(rows, s.in);
    Launch<PickRows<T>>(stream, on.grid, on.block, 0, x.As<T>(), SizesOf(s, 0, 0, 0, 1), rows,
                        reinterpret_cast<T*>(to.data));
  });
}

void SpreadPixels(CudaStreamHandle stream, const ConvolutionShape& s, const View& from,
                  const View& dx) {
  ForFloat(dx.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = s.in_pixels();
    const RowGrid on = GridOfRows(rows, s.in);
    Launch<SpreadRows<T>>(stream, on.grid, on.block, 0, reinterpret_cast<const T*>(from.data),
                          SizesOf(s, 0, 0, 0, 1), rows, dx.As<T>());
  });
}

void PointwiseBackward(CudaStreamHandle stream, const ConvolutionShape& s, const ConstView& x,
                       const ConstView& w, const ConstView& dy, const std::optional<View>& dx,
                       const std::optional<View>& dw, const View& workspace) {
  const int64_t pixels = s.out_pixels();
  if (dx) {
    const GemmResult result =
        s.is_product() ? Result(*dx, 0, s.in) : GemmResult{workspace.data, s.in, dx->dtype};
    Gemm(stream, pixels, s.in, s.out, Factor(dy, 0, s.out), Factor(w, 0, s.in), result);
    if (!s.is_product()) SpreadPixels(stream, s, workspace, *dx);
  }
  if (dw) {
    if (!s.is_product()) PickPixels(stream, s, x, workspace);
    const GemmOperand b =
        s.is_product() ? Factor(x, 0, s.in) : GemmOperand{workspace.data, s.in, false, x.dtype};
    Gemm(stream, s.out, s.in, pixels, Transposed(dy, 0, s.out), b, Result(*dw, 0, s.in),
         {.added = dw->data});
  }
}

}  // namespace

void ConvolutionForwardCuda(CudaStreamHandle stream, const ConvolutionShape& s, const ConstView& x,
                            const ConstView& w, const View& y, const View& workspace) {
  if (s.is_pointwise()) {
    if (!s.is_product()) PickPixels(stream, s, x, workspace);
    const GemmOperand a =
        s.is_product() ? Factor(x, 0, s.in) : GemmOperand{workspace.data, s.in, false, x.dtype};
    return Gemm(stream, s.out_pixels(), s.out, s.in, a, Transposed(w, 0, s.in),
                Result(y, 0, s.out));
  }
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    LaunchUnfolded(stream, SizesOf(s, s.out_pixels(), s.group_out(), s.terms(), 1),
                   ForwardFactors<T>{x.As<T>(), WeightOf<T>(w), y.As<T>()});
  });
}

void ConvolutionBackwardCuda(CudaStreamHandle stream, const ConvolutionShape& s, const ConstView& x,
                             const ConstView& w, const ConstView& dy, const std::optional<View>& dx,
                             const std::optional<View>& dw, const View& workspace) {
  if (s.is_pointwise()) return PointwiseBackward(stream, s, x, w, dy, dx, dw, workspace);
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    if (dx) {
      LaunchUnfolded(stream, SizesOf(s, s.in_pixels(), s.group_in(), s.taps() * s.group_out(), 1),
                     DxFactors<T>{dy.As<T>(), WeightOf<T>(w), dx->As<T>()});
    }
    if (!dw) return;
    auto* const parts = reinterpret_cast<float*>(workspace.data);
    const int64_t slices = s.WeightSlicesOnCuda(), n = s.weights();
    LaunchUnfolded(stream, SizesOf(s, s.group_out(), s.terms(), s.out_pixels(), slices),
                   DwFactors<T>{dy.As<T>(), x.As<T>(), parts});
    ForFloat(dw->dtype, [&](auto sum_is) {
      using G = typename decltype(sum_is)::type;
      Launch<AddSlices<G>>(stream, dim3(static_cast<unsigned>(CeilDiv(n, kThreads))),
                           dim3(kThreads), 0, parts, n, slices, dw->As<G>());
    });
  });
}

}  // namespace fsdp
