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
#include "trainer/loop/resolved_run.h"
#include "trainer/recipe/hardware.h"

namespace fsdp {

class ProgressLine;
class StopSignal;
struct Evaluation;
struct Recipe;
struct ShapeConflict;

// Finds the rank's place from the environment (launch/environment.h) and its peers through the
// store, then trains until `signals` says otherwise. With `dry_run`, or on the sim device, it makes
// all checks, runs one step on the simulator, prints the plan and allocates nothing. Throws Error.
ExitCode TrainProcess(const Recipe& recipe, const std::vector<std::string>& command_line,
                      bool dry_run, StopSignal& signals);

// One rank of a job that evaluates, until it is done or `signals` says otherwise. Throws Error.
ExitCode EvaluateProcess(Evaluation evaluation, const std::vector<std::string>& command_line,
                         StopSignal& signals);

// Prints the losses of the held-out sets by a checkpoint of ours and by the Hugging Face directory
// that it was exported to, and their differences; nothing where its recipe holds nothing out.
void CompareHeldOut(const std::string& checkpoint, const std::string& exported);

// Settings that a job of this size cannot follow. The recipe may have other mistakes, too.
std::vector<ShapeConflict> PlaceConflicts(const Recipe& recipe, int world, int local_world,
                                          int max_restarts = 0);
// The same for the job of which this process is a rank.
std::vector<ShapeConflict> PlaceConflictsHere(const Recipe& recipe);

// Finds mistakes in recipe and model for a job of this size, before the job has ranks. Throws
// ConfigError, CheckpointError.
void CheckTraining(const Recipe& recipe, int world, int local_world, int max_restarts);

// "the run can go on from runs/a/checkpoints/step_10", or that there is no checkpoint to go on
// from. Never throws: empty where the directory cannot be read.
std::string HowToGoOn(const Recipe& recipe);

// Opens model.init_from as a run does that begins with it, and reads headers alone. Throws
// CheckpointError unless every weight is there with its shape. Checks nothing where there is a
// checkpoint that the run would go on from.
void CheckInitialWeights(const Recipe& recipe);

// The time of a step, where somebody knows it. May put better numbers into the run's plan.
using EstimateRun = std::function<std::optional<StepEstimate>(ResolvedRun& run)>;

// `fsdp-train plan`: prints the plan, for hosts of `local_world` ranks like this host, or like
// `hardware`. Where it does not fit, returns kMemory with `json`; otherwise throws MemoryError,
// which says what would fit. `estimate` may be null. `line` says what it does, until it prints.
ExitCode PlanProcess(const Recipe& recipe, int world, int local_world,
                     const std::optional<Hardware>& hardware, bool json, ProgressLine& line,
                     const EstimateRun& estimate = nullptr);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PROCESS_H_
