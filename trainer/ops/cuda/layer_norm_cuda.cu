#include "trainer/ops/cuda/layer_norm_cuda.h"
#include "trainer/ops/cuda/norm.h"

namespace fsdp {
namespace {

constexpr int kThreads = 256;  // Per row, at most: backward holds sums for two gradients.

template <typename T>
__global__ void __launch_bounds__(kThreads)
    LayerNormForwardRows(DeviceRows<const T> x, DeviceWeight<T> w, DeviceWeight<T> b, int64_t rows,
                         float eps, bool packs, DeviceRows<T> y, float* mean_out, float* rstd_out) {
  __shared__ float of_sum[kNormWarps][1], of_squares[kNormWarps][1];
  const float scale = 1.0f / static_cast<float>(x.cols);
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int64_t here = row < rows ? row : 0;
  const RowInHand<T, 1> in({x.At(here)}, row < rows ? x.cols : 0, packs);
  float sum[1] = {0};
  in.ForEach([&](const auto& piece, int) {
#pragma unroll
    for (int j = 0; j < kNormPiece; ++j) sum[0] += piece[0][j];
  });
  SumOverRow(sum, of_sum);
  const float mean = sum[0] * scale;
  // A second pass, not mean(x^2) - mean^2: that loses every digit where the mean is large.
  float squares[1] = {0};
  in.ForEach([&](const auto& piece, int first) {
#pragma unroll
    for (int j = 0; j < kNormPiece; ++j) {
      const float d = first + j < x.cols ? piece[0][j] - mean : 0.0f;
      squares[0] = __fmaf_rn(d, d, squares[0]);
    }
  });
  SumOverRow(squares, of_squares);
  const float rstd = 1.0f / sqrtf(squares[0] * scale + eps);
  T* const to = y.At(here);
  in.ForEach([&](const auto& piece, int first) {
    float weight[kNormPiece], bias[kNormPiece];
    Elements<T, kNormPiece> out;
    float values[kNormPiece];
    w.Read(first, x.cols - first, packs, weight);
    b.Read(first, x.cols - first, packs, bias);
#pragma unroll
    for (int j = 0; j < kNormPiece; ++j) {
      values[j] = __fmaf_rn((piece[0][j] - mean) * rstd, weight[j], bias[j]);
    }
    out.Set(values);
    out.Write(to + first, x.cols - first, packs);
  });
  if (row < rows && threadIdx.x == 0) {
    mean_out[row] = mean;
    rstd_out[row] = rstd;
  }
}

// dw (0) and db (1) of the pieces that a thread holds of rows.
struct ParameterGradients {
  float sums[2][kNormHeld][kNormPiece] = {};

  template <typename T, int n>
  __device__ void Add(const RowInHand<T, n>& in, float mean, float rstd) {
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) {
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        const float dy = in.held[k][1][j];
        sums[0][k][j] = __fmaf_rn(dy, (in.held[k][0][j] - mean) * rstd, sums[0][k][j]);
        sums[1][k][j] += dy;
      }
    }
  }
};

// Block b has the rows from b rows / blocks on. `partial`: null where neither dw nor db is wanted.
template <typename T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 2 : 1)
    LayerNormBackwardRows(DeviceRows<const T> x, DeviceWeight<T> w, const float* mean_in,
                          const float* rstd_in, DeviceRows<const T> dy, int64_t rows, bool packs,
                          bool add, DeviceRows<T> dx, float* partial) {
  __shared__ float shared[2][kNormWarps][2];
  const int cols = x.cols;
  const int64_t block = blockIdx.x, blocks = gridDim.x;
  const int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
  const float scale = 1.0f / static_cast<float>(cols);
  if (partial != nullptr) partial += block * 2 * cols;

  // Columns that are not held, while dy is there: dx may take its place. One row a block.
  const int held = static_cast<int>(blockDim.x) * kNormHeld * kNormPiece;
  for (int tile = held; tile < cols && partial != nullptr; tile += held) {
    ParameterGradients gradients;
    for (int64_t row = begin; row < end; ++row) {
      const RowInHand<T, 2> in({x.At(row) + tile, dy.At(row) + tile}, cols - tile, packs);
      gradients.Add(in, mean_in[row], rstd_in[row]);
    }
    PutColumnSums(gradients.sums, cols - tile, cols, partial + tile);
  }

  ParameterGradients gradients;
  int turn = 0;
  for (int64_t first_row = begin; first_row < end; first_row += blockDim.y, turn ^= 1) {
    const bool mine = first_row + threadIdx.y < end;
    const int64_t row = mine ? first_row + threadIdx.y : begin;
    T* const to = dx.At(row);
    const RowInHand<T, 2> in({x.At(row), dy.At(row)}, mine ? cols : 0, packs);
    const float mean = mine ? mean_in[row] : 0.0f, rstd = mine ? rstd_in[row] : 0.0f;
    float sums[2] = {0, 0};  // Sums of g = w dy, and of g xhat.
    in.ForEach([&](const auto& piece, int first) {
      float weight[kNormPiece];
      w.Read(first, cols - first, packs, weight);
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        const float g = weight[j] * piece[1][j];
        sums[0] = __fmaf_rn(weight[j], piece[1][j], sums[0]);
        sums[1] = __fmaf_rn(g, (piece[0][j] - mean) * rstd, sums[1]);
      }
    });
    gradients.Add(in, mean, rstd);
    SumOverRow(sums, shared[turn]);
    const float mean_g = sums[0] * scale, mean_gx = sums[1] * scale;
    in.ForEach([&](const auto& piece, int first) {
      float weight[kNormPiece];
      Elements<T, kNormPiece> out;
      if (add) out.Read(to + first, cols - first, packs);
      float values[kNormPiece];
      w.Read(first, cols - first, packs, weight);
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        const float xhat = (piece[0][j] - mean) * rstd;
        const float d =
            rstd * __fmaf_rn(-xhat, mean_gx, __fmaf_rn(weight[j], piece[1][j], -mean_g));
        values[j] = add ? out[j] + d : d;
      }
      out.Set(values);
      out.Write(to + first, cols - first, packs);
    });
  }
  if (partial != nullptr) PutColumnSums(gradients.sums, min(cols, held), cols, partial);
}

template <typename G>
__global__ void LayerNormAddParameterGradient(const float* partial, int64_t blocks, int64_t cols,
                                              G* gradient) {
  AddColumnSums(partial, blocks, 2 * cols, cols, gradient);
}

// The rows of a matrix.
template <typename T, typename AnyView>
auto RowsOf(const AnyView& matrix) {
  const int64_t cols = matrix.shape[1];
  return RowsOf<T>(NormRows<AnyView>{matrix, 0, cols}, NormShape{matrix.shape[0], 1, cols});
}

}  // namespace

void LayerNormForwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& w,
                          const ConstView& b, float eps, const View& y, const View& mean,
                          const View& rstd) {
  const int64_t rows = x.shape[0], cols = x.shape[1];
  const dim3 block = NormBlock(cols, kThreads);
  const dim3 grid(static_cast<unsigned>(CeilDiv(rows, block.y)));
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const auto from = RowsOf<T>(x);
    const auto to = RowsOf<T>(y);
    const bool packs = InPacks(from) && InPacks(to) && IsAligned(w.data) && IsAligned(b.data);
    Launch<LayerNormForwardRows<T>>(stream, grid, block, 0, from, WeightOf<T>(w), WeightOf<T>(b),
                                    rows, eps, packs, to, mean.As<float>(), rstd.As<float>());
  });
}

void LayerNormBackwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& w,
                           const ConstView& mean, const ConstView& rstd, const ConstView& dy,
                           int64_t blocks, bool add, const View& dx, const std::optional<View>& dw,
                           const std::optional<View>& db, const View& workspace) {
  const int64_t rows = x.shape[0], cols = x.shape[1];
  float* const partial = dw || db ? workspace.As<float>() : nullptr;
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const auto from = RowsOf<T>(x), gradient = RowsOf<T>(dy);
    const auto to = RowsOf<T>(dx);
    const bool packs = InPacks(from) && InPacks(gradient) && InPacks(to) && IsAligned(w.data);
    Launch<LayerNormBackwardRows<T>>(stream, dim3(static_cast<unsigned>(blocks)),
                                     NormBlock(cols, kThreads), 0, from, WeightOf<T>(w),
                                     mean.As<float>(), rstd.As<float>(), gradient, rows, packs, add,
                                     to, partial);
  });
  for (int part = 0; part < 2; ++part) {
    const std::optional<View>& out = part == 0 ? dw : db;
    if (!out) continue;
    ForFloat(out->dtype, [&](auto is) {
      using G = typename decltype(is)::type;
      Launch<LayerNormAddParameterGradient<G>>(stream, ColumnSumsGrid(cols), ColumnSumsBlock(), 0,
                                               partial + part * cols, blocks, cols, out->As<G>());
    });
  }
}

}  // namespace fsdp
