#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/loss/loss_terms.h"

namespace fsdp {
namespace {

constexpr int kThreads = 512;

__global__ void AddTerms(const double* terms, int64_t n, float scale, float* loss) {
  __shared__ double sums[kThreads / kWarp];
  double sum = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += terms[i];
  sum = BlockSum(sum, sums);
  if (threadIdx.x == 0) *loss += static_cast<float>(scale * sum);
}

}  // namespace

void AddLossTerms(CudaStreamHandle stream, const double* terms, int64_t n, float scale,
                  float* loss) {
  Launch<AddTerms>(stream, dim3(1), dim3(kThreads), 0, terms, n, scale, loss);
}

}  // namespace fsdp
