#include "trainer/ops/cpu/gelu_cpu.h"

#include "trainer/ops/cpu/gelu_kernels.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 256;

const GeluKernels& Kernels() { return ForThisCpu(kGeluAvx2, kGeluAvx512); }

}  // namespace

void GeluForwardCpu(ThreadPool& pool, const float* x, int64_t n, float* y) {
  pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
    Kernels().forward(x + begin, end - begin, y + begin);
  });
}

void GeluBackwardCpu(ThreadPool& pool, const float* x, const float* dy, int64_t n, float* dx) {
  pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
    Kernels().backward(x + begin, dy + begin, end - begin, dx + begin);
  });
}

}  // namespace fsdp
