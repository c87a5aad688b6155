// A recipe, a machine and ranks become a run: the one way there is.
// Tests: tests/trainer/loop/resolved_run_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_RESOLVE_H_
#define FSDP_TRAIN_TRAINER_LOOP_RESOLVE_H_

#include "trainer/comm/store/store.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolved_run.h"

namespace fsdp {

struct Recipe;

// All ranks of the place's job call it, and it blocks for them; for a place without a job it asks
// nobody. Allocates nothing of the run. RequireFit() checks whether the run fits. Throws
// ConfigError, CheckpointError, DataError, DeviceError, and as Exchange() and Together() do.
ResolvedRun Resolve(const Recipe& recipe, const Place& place);

// Resolve() without a plan: that of the run is empty.
ResolvedRun ResolveUnplanned(const Recipe& recipe, const Place& place);

// Throws MemoryError, with the cheapest cures, where the plan does not fit.
void RequireFit(const ResolvedRun& run);

// The ranks of a job compare these before the first step, recipe and schedule first. The run must
// have data.
Labels LabelsOf(const ResolvedRun& run);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RESOLVE_H_
