// The share of its kernels' own rates that a whole step reaches on this machine
// (Hardware::reached). Kernels that are timed alone find their operands in caches and wait for
// nobody; those of a step do not. Tests: tests/trainer/bench/whole_step_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_WHOLE_STEP_H_
#define FSDP_TRAIN_TRAINER_BENCH_WHOLE_STEP_H_

#include <string>

#include "trainer/recipe/hardware.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

struct Recipe;

// Trains `recipe` as one rank on `device` and returns the median of a step's seconds, without the
// first two steps. Writes the run below `directory`. Blocks until the run has ended. Throws Error.
double SecondsOfAStep(Recipe recipe, const ChosenDevice& device, const std::string& directory);

// The value of `reached` with which a simulated step of one rank takes `seconds` on `hardware`; at
// most 1. Throws as Resolve() and Simulate().
double ReachedBy(double seconds, const Recipe& recipe, Hardware hardware);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_WHOLE_STEP_H_
