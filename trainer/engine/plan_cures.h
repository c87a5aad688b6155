// A plan that does not fit: by how much, and which settings make it fit.
// Tests: tests/trainer/engine/plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_PLAN_CURES_H_
#define FSDP_TRAIN_TRAINER_ENGINE_PLAN_CURES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/process_limits.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/session.h"

namespace fsdp {

class Model;

// The limit that a plan exceeds.
struct Misfit {
  int64_t bytes = 0, room = 0;  // A rank needs, and has.
  const char* of = "";          // "device memory", ...
};
std::optional<Misfit> MisfitOf(const RunPlan& plan);  // Empty: it fits.

// The recipe with one setting changed, or a few that belong together.
struct Cure {
  std::string setting;                 // "train.micro_batch_size: 2 and ...", for people.
  std::vector<std::string> overrides;  // As --set has it. Empty: the user has to name a directory.
  int64_t bytes = 0;                   // A rank needs, of what was exceeded.
};

// Those with which it fits, the cheapest in speed first: each is planned. None for a plan that
// fits. `plan` was made for `target`. No further one is planned from when on `stop` is true; it may
// be null.
std::vector<Cure> FittingCures(Model& model, const SessionOptions& options, const RunPlan& plan,
                               const PlanTarget& target,
                               const MemoryLimits& limits = MemoryLimits(),
                               const std::function<bool()>& stop = nullptr);

// Throws MemoryError if the plan does not fit. The message says by how much, and lists the cures.
void RequireFit(Model& model, const SessionOptions& options, const RunPlan& plan,
                const PlanTarget& target = {}, const MemoryLimits& limits = MemoryLimits());

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_PLAN_CURES_H_
