#include "trainer/ops/cpu/gelu_cpu.h"

#include "trainer/ops/cpu/gelu_kernels.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 256;

const GeluKernels& Kernels() { return ForThisCpu(kGeluAvx2, kGeluAvx512); }

}  // namespace

void GeluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  pool.ParallelFor(x.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    Kernels().forward(x.As<float>() + begin, end - begin, y.As<float>() + begin);
  });
}

void GeluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx) {
  pool.ParallelFor(x.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    Kernels().backward(x.As<float>() + begin, dy.As<float>() + begin, end - begin,
                       dx.As<float>() + begin);
  });
}

}  // namespace fsdp
