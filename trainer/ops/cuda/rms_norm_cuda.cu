#include "trainer/ops/cuda/norm.h"
#include "trainer/ops/cuda/rms_norm_cuda.h"

namespace fsdp {
namespace {

constexpr int kThreads = 512;  // Per row, at most.

template <typename T>
__global__ void __launch_bounds__(kThreads)
    RmsNormForwardRows(DeviceRows<const T> x, DeviceWeight<T> w, int64_t rows, float eps,
                       bool packs, DeviceRows<T> y, float* r_out) {
  __shared__ float shared[kNormWarps][1];
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int64_t here = row < rows ? row : 0;
  const RowInHand<T, 1> in({x.At(here)}, row < rows ? x.cols : 0, packs);
  float squares[1] = {0};
  in.ForEach([&](const auto& piece, int) {
#pragma unroll
    for (int j = 0; j < kNormPiece; ++j) {
      squares[0] = __fmaf_rn(piece[0][j], piece[0][j], squares[0]);
    }
  });
  SumOverRow(squares, shared);
  const float r = 1.0f / sqrtf(squares[0] / static_cast<float>(x.cols) + eps);
  T* const to = y.At(here);
  in.ForEach([&](const auto& piece, int first) {
    float weight[kNormPiece];
    Elements<T, kNormPiece> out;
    float values[kNormPiece];
    w.Read(first, x.cols - first, packs, weight);
#pragma unroll
    for (int j = 0; j < kNormPiece; ++j) values[j] = weight[j] * (piece[0][j] * r);
    out.Set(values);
    out.Write(to + first, x.cols - first, packs);
  });
  if (row < rows && threadIdx.x == 0) r_out[row] = r;
}

// dw of an element of a row.
__device__ inline float AddWeightGradient(float x, float r, float dy, float dw) {
  return __fmaf_rn(dy, x * r, dw);
}

// Block b has the rows from b rows / blocks on. `partial`: null where dw is not wanted.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    RmsNormBackwardRows(DeviceRows<const T> x, DeviceWeight<T> w, const float* r_in,
                        DeviceRows<const T> dy, int64_t rows, bool packs, bool add,
                        DeviceRows<T> dx, float* partial) {
  __shared__ float shared[2][kNormWarps][1];
  const int cols = x.cols;
  const int64_t block = blockIdx.x, blocks = gridDim.x;
  const int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
  if (partial != nullptr) partial += block * cols;

  // Columns that are not held, while dy is there: dx may take its place. One row a block.
  const int held = static_cast<int>(blockDim.x) * kNormHeld * kNormPiece;
  for (int tile = held; tile < cols && partial != nullptr; tile += held) {
    float dw[1][kNormHeld][kNormPiece] = {};
    for (int64_t row = begin; row < end; ++row) {
      const RowInHand<T, 2> in({x.At(row) + tile, dy.At(row) + tile}, cols - tile, packs);
      const float r = r_in[row];
#pragma unroll
      for (int k = 0; k < kNormHeld; ++k) {
#pragma unroll
        for (int j = 0; j < kNormPiece; ++j) {
          dw[0][k][j] = AddWeightGradient(in.held[k][0][j], r, in.held[k][1][j], dw[0][k][j]);
        }
      }
    }
    PutColumnSums(dw, cols - tile, cols, partial + tile);
  }

  float dw[1][kNormHeld][kNormPiece] = {};
  int turn = 0;
  for (int64_t first_row = begin; first_row < end; first_row += blockDim.y, turn ^= 1) {
    const int64_t row = first_row + threadIdx.y < end ? first_row + threadIdx.y : begin;
    const bool mine = first_row + threadIdx.y < end;
    T* const to = dx.At(row);
    const RowInHand<T, 2> in({x.At(row), dy.At(row)}, mine ? cols : 0, packs);
    const float r = mine ? r_in[row] : 0.0f;
    float dot[1] = {0};
    in.ForEach([&](const auto& piece, int first) {
      float weight[kNormPiece];
      w.Read(first, cols - first, packs, weight);
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        dot[0] = __fmaf_rn(weight[j] * piece[1][j], piece[0][j] * r, dot[0]);
      }
    });
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) {
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        dw[0][k][j] = AddWeightGradient(in.held[k][0][j], r, in.held[k][1][j], dw[0][k][j]);
      }
    }
    SumOverRow(dot, shared[turn]);
    const float mean = dot[0] / static_cast<float>(cols);
    in.ForEach([&](const auto& piece, int first) {
      float weight[kNormPiece];
      Elements<T, kNormPiece> out;
      if (add) out.Read(to + first, cols - first, packs);
      float values[kNormPiece];
      w.Read(first, cols - first, packs, weight);
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        const float d = r * __fmaf_rn(-(piece[0][j] * r), mean, weight[j] * piece[1][j]);
        values[j] = add ? out[j] + d : d;
      }
      out.Set(values);
      out.Write(to + first, cols - first, packs);
    });
  }
  if (partial != nullptr) PutColumnSums(dw, min(cols, held), cols, partial);
}

template <typename G>
__global__ void RmsNormAddWeightGradient(const float* partial, int64_t blocks, int64_t cols,
                                         G* dw) {
  AddColumnSums(partial, blocks, cols, cols, dw);
}

}  // namespace

void RmsNormForwardCuda(CudaStreamHandle stream, const NormShape& shape,
                        const NormRows<ConstView>& x, const ConstView& w, float eps,
                        const NormRows<View>& y, const View& r) {
  const dim3 block = NormBlock(shape.cols, kThreads);
  const dim3 grid(static_cast<unsigned>(CeilDiv(shape.rows(), block.y)));
  ForFloat(x.tensor.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const auto from = RowsOf<T>(x, shape);
    const auto to = RowsOf<T>(y, shape);
    const bool packs = InPacks(from) && InPacks(to) && IsAligned(w.data);
    Launch<RmsNormForwardRows<T>>(stream, grid, block, 0, from, WeightOf<T>(w), shape.rows(), eps,
                                  packs, to, r.As<float>());
  });
}

void RmsNormBackwardCuda(CudaStreamHandle stream, const NormShape& shape,
                         const NormRows<ConstView>& x, const ConstView& w, const ConstView& r,
                         const NormRows<ConstView>& dy, int64_t blocks, bool add,
                         const NormRows<View>& dx, const std::optional<View>& dw,
                         const View& workspace) {
  float* const partial = dw ? workspace.As<float>() : nullptr;
  ForFloat(x.tensor.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const auto from = RowsOf<T>(x, shape), gradient = RowsOf<T>(dy, shape);
    const auto to = RowsOf<T>(dx, shape);
    const bool packs = InPacks(from) && InPacks(gradient) && InPacks(to) && IsAligned(w.data);
    Launch<RmsNormBackwardRows<T>>(stream, dim3(static_cast<unsigned>(blocks)),
                                   NormBlock(shape.cols, kThreads), 0, from, WeightOf<T>(w),
                                   r.As<float>(), gradient, shape.rows(), packs, add, to, partial);
  });
  if (!dw) return;
  ForFloat(dw->dtype, [&](auto is) {
    using G = typename decltype(is)::type;
    Launch<RmsNormAddWeightGradient<G>>(stream, ColumnSumsGrid(shape.cols), ColumnSumsBlock(), 0,
                                        partial, blocks, shape.cols, dw->As<G>());
  });
}

}  // namespace fsdp
