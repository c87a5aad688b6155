#include "trainer/ops/cpu/running_statistics_cpu.h"

#include <cmath>
#include <cstring>

namespace fsdp {

void CountBatchCpu(ThreadPool&, const View& count) { *count.As<int64_t>() += 1; }

void TakeUnlessNaNCpu(ThreadPool& pool, const ConstView& coefficient, float divisor,
                      const ConstView& from, const View& to) {
  if (std::isnan(*coefficient.As<float>())) return;
  if (to.dtype == DType::kInt64) {
    std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
    return;
  }
  constexpr int64_t kGrain = 4096;
  pool.ParallelFor(to.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to.As<float>()[i] = from.As<float>()[i] / divisor;
  });
}

}  // namespace fsdp
