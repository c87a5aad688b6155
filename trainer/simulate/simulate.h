// Training steps of a recipe on a described cluster, in simulated time: the real schedule of one
// rank of the job, run by its executor on a simulated device.
//
// Every rank of a job does the same at the same time, so one of them stands for all. Its time is
// that of a step in a run that goes on: the last one that is simulated, from where the step before
// ends to where it ends.
// Tests: tests/trainer/simulate/simulate_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_SIMULATE_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_SIMULATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/memory_point.h"
#include "trainer/core/span.h"
#include "trainer/engine/plan.h"
#include "trainer/fsdp/step_times.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/recipe/hardware.h"
#include "trainer/runtime/caching_allocator.h"

namespace fsdp {

struct SimulateOptions {
  int steps = 3;
  // One rank of the job computes so many times slower than the others, one of which is simulated:
  // collectives wait for it.
  double slowest = 1;
  bool trace = false;  // Keeps the last step's, the host's time included.
};

struct Simulation {
  double step_s = 0;  // Seconds of a step.
  StepTimes times;    // The parts of it.
  double host_s = 0;  // Seconds of it in which the device waits for the host, which enqueues.
  // Peaks of the last step, and retries in it. Empty: memory is planned.
  std::optional<CachingStatistics> memory;
  double hardware_flops = 0;  // A rank's step's: recomputed FLOPs count, and those of all pairs.
  double samples = 0;         // The job's step's.
  double device_s = 0, link_s = 0;  // Seconds that kernels and collectives would take alone.
  std::vector<Span> spans = {};     // Seconds from the begin of the step.
  // Planned memory: that in use over the step (engine/step_memory.h). A caching allocator's where
  // each operation is enqueued: on the host's clock, as are the allocator's blocks.
  std::vector<MemoryPoint> memory_points = {};
  std::map<uint64_t, StepPart> parts = {};  // The meaning of the spans' tags.
};

// `run` is of that machine (PlaceToPlan()). Throws ConfigError where the file lacks a number that
// the step needs, and MemoryError where an allocation of a caching allocator does not fit.
Simulation Simulate(const ResolvedRun& run, const Hardware& hardware,
                    const SimulateOptions& options = {});

// The estimate of a step for `plan --hardware` and `simulate`.

// `floor_s`: of the run's StepFloor. Without one it is found, which throws as FloorOf(). The MFU
// divides by the file's rates of products as data sheets state them.
StepEstimate EstimateOf(const ResolvedRun& run, const Hardware& hardware,
                        const Simulation& simulation, std::optional<double> floor_s = std::nullopt);

// Simulates the run, gives its plan the peaks of a caching allocator, which depend on time, and
// whether those fit. Empty: they do not. Throws as Simulate().
std::optional<Simulation> SimulateAndPlan(ResolvedRun& run, const Hardware& hardware,
                                          const SimulateOptions& options);

// `fsdp-train simulate`, and the times in `plan --hardware`.

class ProgressLine;
struct Recipe;

// Ranks of a host: as asked, as the hardware file has them where these are fewer than the job's, or
// all. Throws ConfigError where they do not divide the world.
int LocalWorldFor(int world, std::optional<int> asked, const std::optional<Hardware>& hardware);

// `expert_load` of these two: Place's (loop/place.h), which CheckExpertLoad() takes.
// Prints the plan, and with hardware the time of a step, or which number the file lacks for that.
// Returns and throws as PlanProcess() (loop/process.h).
ExitCode PlanOnHardware(const Recipe& recipe, int world, int local_world,
                        const std::optional<Hardware>& hardware, double expert_load, bool json,
                        ProgressLine& line);

// The same for a simulation with these options; throws ConfigError where the file lacks a number
// that the step needs. A `directory` that is not empty is made, and gets the same object as
// simulate.json and the trace of a step as traces/step_N.json, in place of older ones. Throws
// CheckpointError where it cannot be written.
ExitCode SimulateProcess(const Recipe& recipe, int world, int local_world, const Hardware& hardware,
                         double expert_load, SimulateOptions options, const std::string& directory,
                         bool json, ProgressLine& line);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_SIMULATE_H_
