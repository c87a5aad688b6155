// A plan that is wanted only if it fits.
// Tests: tests/trainer/engine/plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_PLAN_THAT_FITS_H_
#define FSDP_TRAIN_TRAINER_ENGINE_PLAN_THAT_FITS_H_

#include <optional>

#include "trainer/engine/plan.h"

namespace fsdp {

// PlanRun() without the schedule's hash. Empty where the run does not fit, which is found out as
// early as possible.
std::optional<RunPlan> PlanThatFits(Model& model, const SessionOptions& options, int world,
                                    int local_world, const PlanTarget& target,
                                    const MemoryLimits& limits = MemoryLimits());

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_PLAN_THAT_FITS_H_
