#include "trainer/ops/cpu/gelu_cpu.h"

#include "trainer/ops/cpu/gelu_elements.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 256;

}  // namespace

void GeluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  pool.ParallelFor(x.NumElements(), kGrain,
                   [&](int64_t begin, int64_t end) { GeluForwardElements(x, begin, end, y); });
}

void GeluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx) {
  pool.ParallelFor(x.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    GeluBackwardElements(x, dy, begin, end, dx);
  });
}

}  // namespace fsdp
