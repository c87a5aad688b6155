#include "tests/emulated/library_kernels.h"

#include "trainer/ops/cuda/launch.h"

namespace fsdp {
namespace {

__global__ void AddTwice(const float* x, bool clears, float* y) {
  __shared__ float sum[3];
  if (clears) sum[1] = 0;
  sum[1] += x[blockIdx.x];
  sum[1] += x[blockIdx.x];
  y[blockIdx.x] = sum[1];
}

}  // namespace

void TwiceByBlocks(const float* x, int n, bool clears, float* y) {
  Launch<AddTwice>(nullptr, n, 1, 0, x, clears, y);
}

}  // namespace fsdp
