// The pass over a shard that updates make: see update.h. Not an op itself.
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_CPU_H_

#include <cmath>
#include <cstdint>
#include <span>

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/update_kernels.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_blocks.h"
#include "trainer/ops/update.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// The tensors of update number `update`, in the form for kernels.
UpdateTensors TensorsOf(const UpdateOperands& operands, int64_t update);

// Writes the only output of a skipped step: the copy.
void CopyOfSkipped(ThreadPool& pool, const UpdateOperands& operands);

// factors_of(c, rule, factors) returns the factors that `kernel` gets for the elements of a rule.
template <typename Factors, typename FactorsOf>
void UpdateShard(ThreadPool& pool, const UpdateOperands& o,
                 void (*UpdateKernels::*kernel)(const UpdateTensors&, const UpdateRun&,
                                                const Factors&),
                 const FactorsOf& factors_of) {
  constexpr int64_t kGrain = 1024;
  const float c = *o.coefficient.As<float>();
  if (!std::isfinite(c)) return CopyOfSkipped(pool, o);
  const UpdateFactors& factors = *o.factors.As<UpdateFactors>();
  const std::span<const ElementRule> rules = RulesIn(o.rules);
  const UpdateTensors tensors = TensorsOf(o, factors.update);
  const auto update = ForThisCpu(kUpdateAvx2, kUpdateAvx512).*kernel;
  pool.ParallelFor(o.p.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ForEachRun(rules, begin, end, [&](int64_t at, int64_t stop, int index) {
      const ElementRule rule = index < 0 ? ElementRule() : rules[index];
      const UpdateRun run{at, stop - at, rule.tensor, rule.element + at - rule.begin};
      update(tensors, run, factors_of(c, rule, factors));
    });
  });
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_CPU_H_
