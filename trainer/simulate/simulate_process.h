// `fsdp-train simulate`, and the times in `plan --hardware`.
// Tests: tests/e2e/simulate_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_SIMULATE_PROCESS_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_SIMULATE_PROCESS_H_

#include <optional>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/recipe/hardware.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {

struct Recipe;

// Ranks of a host: as asked, as the hardware file has them where these are fewer than the job's, or
// all. Throws ConfigError where they do not divide the world.
int LocalWorldFor(int world, std::optional<int> asked, const std::optional<Hardware>& hardware);

// Prints the plan, and with hardware the time of a step, or which number the file lacks for that.
// Returns and throws as PlanProcess() (loop/process.h).
ExitCode PlanOnHardware(const Recipe& recipe, int world, int local_world,
                        const std::optional<Hardware>& hardware, bool json);

// The same for a simulation with these options; throws ConfigError where the file lacks a number
// that the step needs. A `directory` that is not empty is made, and gets the same object as
// simulate.json and the trace of a step as traces/step_N.json, in place of older ones. Throws
// CheckpointError where it cannot be written.
ExitCode SimulateProcess(const Recipe& recipe, int world, int local_world, const Hardware& hardware,
                         SimulateOptions options, const std::string& directory, bool json);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_SIMULATE_PROCESS_H_
