#include "trainer/ops/cpu/activations_cpu.h"

#include "trainer/ops/cpu/activation_elements.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 256;

}  // namespace

void ActivationForwardCpu(ThreadPool& pool, Activation f, const ConstView& x, const View& y) {
  pool.ParallelFor(x.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ActivationForwardElements(f, x, begin, end, y);
  });
}

void ActivationBackwardCpu(ThreadPool& pool, Activation f, const ConstView& saved,
                           const ConstView& dy, const View& dx) {
  pool.ParallelFor(saved.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ActivationBackwardElements(f, saved, dy, begin, end, dx);
  });
}

}  // namespace fsdp
