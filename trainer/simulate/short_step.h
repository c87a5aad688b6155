// Steps of many micro-batches, priced by those of few: a step goes on at the pace of its middle
// micro-batches, so that what three and four of them take says what any number does.
// Tests: tests/trainer/simulate/search_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_SHORT_STEP_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_SHORT_STEP_H_

#include <functional>
#include <vector>

#include "trainer/engine/plan.h"
#include "trainer/engine/plan_cures.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/recipe/hardware.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {

// These change the number of micro-batches while they work. They throw as Simulate() and FloorOf().

// Whether the run has so many micro-batches that fewer are simulated for it. With `buffers:
// caching` none are left out: whether it fits depends on time.
bool IsShortened(const ResolvedRun& run);

struct StepBound {
  double floor_s = 0;  // StepFloor's.
  double least_s = 0;  // No step is below: the floor, and the compute stream alone.
};
StepBound BoundOf(ResolvedRun& run, const Hardware& hardware);

// As Simulate() does, without peaks of memory and spans.
Simulation SimulateShort(ResolvedRun& run, const Hardware& hardware);

// More micro-batches than two need no more memory.
RunPlan PlanShort(ResolvedRun& run);

// The cures of a run whose plan PlanShort() or SimulateAndPlan() has made,
// as far as `stop` lets (engine/plan_cures.h).
std::vector<Cure> CuresOf(ResolvedRun& run, const std::function<bool()>& stop = nullptr);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_SHORT_STEP_H_
