// The pass over a shard that updates make: see update.h. Not an op itself.
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_CPU_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/rounding_kernels.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/update.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Whose draws they are: each of an element's values has its own.
enum class Rounded : uint32_t { kMaster, kFirstState, kSecondState };

// Of one update; the tensor is still to be said.
RoundingStream RoundingStreamOf(uint64_t seed, int64_t update, Rounded rounded);

// What is rounded and written once a piece has been updated, from floats in p, and of the states.
class UpdateWriter {
 public:
  UpdateWriter(const UpdateOperands& operands, int64_t update);

  // Elements [at, at + n) of the shard: [element, element + n) of the tensor. Changes p.
  void Write(int64_t at, int64_t n, uint64_t tensor, int64_t element, float* p,
             const float* const (&states)[2]) const;

 private:
  const UpdateOperands& operands_;
  std::array<RoundingStream, 3> streams_;
  float rate_;
};

// update_for(rule, factors) gives update(coefficient, g, n, p, states): the rule's arithmetic on n
// floats of each; a state that is not kept is null.
template <typename UpdateFor>
void UpdateShard(ThreadPool& pool, const UpdateOperands& o, const UpdateFor& update_for) {
  constexpr int64_t kGrain = 1024;
  const float c = *o.coefficient.As<float>();
  if (!std::isfinite(c)) return;
  const UpdateFactors& factors = *o.factors.As<UpdateFactors>();
  const std::span<const ElementRule> rules = RulesIn(o.rules);
  const UpdateWriter writer(o, factors.update);
  pool.ParallelFor(o.p.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    FloatPiece g_buffer, p_buffer, state_buffers[2];
    ForEachRun(rules, begin, end, [&](int64_t at, int64_t stop, int index) {
      const ElementRule rule = index < 0 ? ElementRule() : rules[index];
      const auto update = update_for(rule, factors);
      while (at < stop) {
        // Pieces begin at multiples of their length in the tensor: whole chunks of draws.
        const int64_t element = rule.element + at - rule.begin;
        const int64_t n = std::min(kFloatPiece - element % kFloatPiece, stop - at);
        const float* const g = ReadFloats(o.g, at, n, g_buffer);
        float* const p = FloatsToChange(o.p, at, n, p_buffer);
        float* states[2] = {};
        for (int s = 0; s < 2 && o.states[s].data != nullptr; ++s) {
          states[s] = FloatsToChange(o.states[s], at, n, state_buffers[s]);
        }
        update(c, g, n, p, states);
        writer.Write(at, n, rule.tensor, element, p, {states[0], states[1]});
        at += n;
      }
    });
  });
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_CPU_H_
