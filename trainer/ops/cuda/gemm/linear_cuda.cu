#include "trainer/ops/cuda/gemm/gemm.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/linear_backends.h"

namespace fsdp {
namespace {

// db[j] += sum_i dy[i, j]. A block has a few packs of columns, as many as make 64 bytes, and all
// rows. Each of kRows lanes of threads adds up every kRows-th row, and loads kAhead rows ahead.
// Then the lanes are added up. The number of rows alone decides the order.
constexpr int kPacks = 4, kRows = 128, kThreads = kPacks * kRows, kAhead = 8;

template <typename T>
__global__ void AddColumnSums(const T* dy, int64_t rows, int64_t cols, bool packs, void* db,
                              DType db_dtype) {
  constexpr int kWide = kPack<T>, kCols = kPacks * kWide, kWarps = kThreads / kWarp;
  __shared__ float of_warps[kWarps][kCols];
  const int thread = static_cast<int>(threadIdx.x), pack = thread % kPacks;
  const int64_t first = int64_t{kCols} * blockIdx.x, col = first + pack * kWide;
  const int64_t left = cols - col;
  float sums[kWide] = {};
  for (int64_t begin = thread / kPacks; left > 0 && begin < rows; begin += kRows * kAhead) {
    Pack<T> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t row = begin + i * kRows;
      const T* from = dy + row * cols + col;
      if (row < rows && packs && left >= kWide) {
        ahead[i] = *reinterpret_cast<const Pack<T>*>(from);
      } else {
#pragma unroll
        for (int e = 0; e < kWide; ++e) {
          ahead[i].at[e] = row < rows && e < left ? from[e] : FromFloat<T>(0);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int e = 0; e < kWide; ++e) sums[e] += ToFloat(ahead[i].at[e]);
    }
  }
#pragma unroll
  for (int e = 0; e < kWide; ++e) {
#pragma unroll
    for (int step = kPacks; step < kWarp; step *= 2) {
      sums[e] += __shfl_xor_sync(kAllLanes, sums[e], step);
    }
    if (thread % kWarp < kPacks) of_warps[thread / kWarp][pack * kWide + e] = sums[e];
  }
  __syncthreads();
  if (thread >= kCols || first + thread >= cols) return;
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += of_warps[w][thread];
  const auto add = [&](auto* to) {
    using To = std::remove_pointer_t<decltype(to)>;
    to[first + thread] = FromFloat<To>(ToFloat(to[first + thread]) + sum);
  };
  if (db_dtype == DType::kFloat32) {
    add(static_cast<float*>(db));
  } else if (db_dtype == DType::kBFloat16) {
    add(static_cast<__nv_bfloat16*>(db));
  } else {
    add(static_cast<__half*>(db));
  }
}

}  // namespace

void LinearForwardCuda(CudaStreamHandle stream, WeightLayout layout, const ConstView& x,
                       const ConstView& w, const std::optional<ConstView>& b,
                       const std::optional<ConstView>& residual, const std::optional<View>& u,
                       const View& y) {
  const int64_t rows = x.shape[0], in = x.shape[1], out = y.shape[1];
  const GemmOperand weight =
      layout == WeightLayout::kInOut ? Factor(w, 0, out) : Transposed(w, 0, in);
  Gemm(stream, rows, out, in, Factor(x, 0, in), weight, Result(u ? *u : y, 0, out),
       {.bias = b, .added = residual ? residual->data : nullptr, .gelu = u ? y.data : nullptr});
}

void LinearBackwardCuda(CudaStreamHandle stream, WeightLayout layout,
                        const std::optional<ConstView>& u, const ConstView& x, const ConstView& w,
                        const ConstView& dy, const std::optional<View>& dx,
                        const std::optional<View>& dw, const std::optional<View>& db) {
  const int64_t rows = x.shape[0], in = x.shape[1], out = dy.shape[1];
  const bool in_out = layout == WeightLayout::kInOut;
  if (dx) {
    const GemmOperand weight = in_out ? Transposed(w, 0, out) : Factor(w, 0, in);
    Gemm(stream, rows, in, out, Factor(dy, 0, out), weight, Result(*dx, 0, in),
         {.gelu_of = u ? u->data : nullptr});
  }
  if (dw && in_out) {
    Gemm(stream, in, out, rows, Transposed(x, 0, in), Factor(dy, 0, out), Result(*dw, 0, out),
         {.added = dw->data});
  } else if (dw) {
    Gemm(stream, out, in, rows, Transposed(dy, 0, out), Factor(x, 0, in), Result(*dw, 0, in),
         {.added = dw->data});
  }
  if (!db) return;
  ForFloat(dy.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const bool packs = IsAligned(dy.data) && out % kPack<T> == 0;
    Launch<AddColumnSums<T>>(stream, dim3(CeilDiv(out, kPacks * kPack<T>)), dim3(kThreads), 0,
                             dy.As<T>(), rows, out, packs, db->data, db->dtype);
  });
}

}  // namespace fsdp
