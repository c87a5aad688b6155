// The estimate of a step for `plan --hardware` and `simulate`.
// Tests: tests/trainer/simulate/simulate_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_ESTIMATE_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_ESTIMATE_H_

#include <optional>

#include "trainer/engine/plan.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/recipe/hardware.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {

// Throws as FloorOf().
StepEstimate EstimateOf(const ResolvedRun& run, const Hardware& hardware,
                        const Simulation& simulation);

// Simulates the run, gives its plan the peaks of a caching allocator, which depend on time, and
// whether those fit. Empty: they do not. Throws as Simulate().
std::optional<Simulation> SimulateAndPlan(ResolvedRun& run, const Hardware& hardware,
                                          const SimulateOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_ESTIMATE_H_
