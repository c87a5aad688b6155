// This process as one rank of a job.
// Tests: tests/e2e/contract_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_PROCESS_H_
#define FSDP_TRAIN_TRAINER_LOOP_PROCESS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/engine/plan.h"
#include "trainer/loop/evaluate.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/recipe/hardware.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

class StopSignal;

// Finds its place from the environment (launch/environment.h) and its peers through the store, then
// trains until `signals` says otherwise. With `dry_run`, or on the sim device: all checks, one step
// on the simulator, the plan printed, nothing allocated. Throws Error.
ExitCode TrainProcess(const Recipe& recipe, const std::vector<std::string>& command_line,
                      bool dry_run, StopSignal& signals);

// One rank of a job that evaluates, until it is done or `signals` says otherwise. Throws Error.
ExitCode EvaluateProcess(Evaluation evaluation, const std::vector<std::string>& command_line,
                         StopSignal& signals);

// The mistakes in recipe and model that a job of this size has, before it has ranks. Throws
// ConfigError, CheckpointError.
void CheckTraining(const Recipe& recipe, int world, int local_world, int max_restarts);

// "the run can go on from runs/a/checkpoints/step_10", or that there is no checkpoint to go on
// from. Never throws: empty where the directory cannot be read.
std::string HowToGoOn(const Recipe& recipe);

// Opens model.init_from as a run does that begins with it, and reads headers alone: every weight is
// there with its shape. Not where there is a checkpoint that the run would go on from. Throws
// CheckpointError.
void CheckInitialWeights(const Recipe& recipe);

// What a step takes, where somebody knows. May give the run's plan what it knows better.
using EstimateRun = std::function<std::optional<StepEstimate>(ResolvedRun& run)>;

// `fsdp-train plan`: prints it, for hosts of `local_world` ranks like this one, or like `hardware`.
// Where it does not fit, `json` returns kMemory; otherwise MemoryError says what would.
// `estimate` may be null.
ExitCode PlanProcess(const Recipe& recipe, int world, int local_world,
                     const std::optional<Hardware>& hardware, bool json,
                     const EstimateRun& estimate = nullptr);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PROCESS_H_
