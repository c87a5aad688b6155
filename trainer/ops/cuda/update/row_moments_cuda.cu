#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/matrix_backends.h"

namespace fsdp {
namespace {

constexpr int kThreads = 256, kMostBlocks = 4096, kTileRows = 8;

// A block has a row.
template <typename T>
__global__ void SumRow(int64_t n, const T* y, float* sums) {
  __shared__ float shared[kThreads / kWarp];
  const T* const row = y + blockIdx.x * n;
  float sum = 0;
  for (int64_t j = threadIdx.x; j < n; j += kThreads) {
    const float x = ToFloat(row[j]);
    sum += x * x;
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// A block has 32 columns; a row of its threads every eighth row.
template <typename T>
__global__ void SumColumns(int64_t m, int64_t n, const T* y, float* sums) {
  __shared__ float shared[kTileRows][kWarp];
  const int64_t column = blockIdx.x * int64_t{kWarp} + threadIdx.x;
  float sum = 0;
  for (int64_t i = threadIdx.y; i < m && column < n; i += kTileRows) {
    const float x = ToFloat(y[i * n + column]);
    sum += x * x;
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= n) return;
  for (int r = 1; r < kTileRows; ++r) sum += shared[r][threadIdx.x];
  sums[column] = sum;
}

// One block. A thread has every 256th line.
__global__ void MakeLineFactors(const LineFactors of, int64_t lines, const float* gate, float* v,
                                float* factors) {
  __shared__ double shared[2][kThreads / kWarp];
  const bool lands = IsFinite(*gate);
  double before = 0, after = 0;
  for (int64_t i = threadIdx.x; i < lines; i += kThreads) {
    const float square = of.scale * of.scale * factors[i];
    float moment = v[i];
    if (lands) v[i] = moment = of.old * moment + of.fresh * square;
    const float factor = 1 / (sqrtf(moment) + of.eps);
    before += square;
    after += static_cast<double>(factor) * factor * square;
    factors[i] = factor;
  }
  before = BlockSum(before, shared[0]);
  after = BlockSum(after, shared[1]);
  const auto kept = static_cast<float>(of.scale * sqrt(before) / (sqrt(after) + of.eps));
  for (int64_t i = threadIdx.x; i < lines; i += kThreads) factors[i] *= kept;
}

template <typename T>
__global__ void ScaleLine(int64_t size, int64_t n, bool columns, const float* factors, T* y) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < size;
       i += int64_t{kThreads} * gridDim.x) {
    y[i] = FromFloat<T>(__fmul_rn(factors[columns ? i % n : i / n], ToFloat(y[i])));
  }
}

template <typename Function>
void ForKept(DType dtype, const Function& f) {
  dtype == DType::kBFloat16 ? f(Is<__nv_bfloat16>()) : f(Is<float>());
}

}  // namespace

void LineSquaresCuda(CudaStreamHandle stream, bool columns, const View& y, const View& sums) {
  ForKept(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t m = y.shape[0], n = y.shape[1];
    if (columns) {
      Launch<SumColumns<T>>(stream, dim3(static_cast<unsigned>(CeilDiv(n, kWarp))),
                            dim3(kWarp, kTileRows), 0, m, n, y.As<T>(), sums.As<float>());
    } else {
      Launch<SumRow<T>>(stream, dim3(static_cast<unsigned>(m)), kThreads, 0, n, y.As<T>(),
                        sums.As<float>());
    }
  });
}

void LineFactorsCuda(CudaStreamHandle stream, const LineFactors& of, const ConstView& gate,
                     const View& v, const View& factors) {
  Launch<MakeLineFactors>(stream, 1, kThreads, 0, of, v.NumElements(), gate.As<float>(),
                          v.As<float>(), factors.As<float>());
}

void ScaleLinesCuda(CudaStreamHandle stream, bool columns, const ConstView& factors,
                    const View& y) {
  ForKept(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t size = y.NumElements(), blocks = CeilDiv(size, kThreads);
    Launch<ScaleLine<T>>(stream, static_cast<int>(blocks < kMostBlocks ? blocks : kMostBlocks),
                         kThreads, 0, size, y.shape[1], columns, factors.As<float>(), y.As<T>());
  });
}

}  // namespace fsdp
