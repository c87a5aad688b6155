#include "trainer/simulate/simulate_process.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <span>
#include <system_error>

#include "trainer/core/atomic_file.h"
#include "trainer/engine/plan.h"
#include "trainer/loop/process.h"
#include "trainer/observe/chrome_trace.h"
#include "trainer/simulate/estimate.h"

namespace fsdp {
namespace {

void WriteDirectory(const std::string& directory, const ResolvedRun& run,
                    const StepEstimate& estimate, const Simulation& simulation, int steps) {
  const std::filesystem::path traces = std::filesystem::path(directory) / "traces";
  std::error_code error;
  std::filesystem::create_directories(traces, error);
  if (error) throw CheckpointError(traces.string() + ": cannot be made: " + error.message());
  const RankTrace trace{0, simulation.spans,
                        [&](uint64_t tag) {
                          const auto part = simulation.parts.find(tag);
                          return part == simulation.parts.end() ? StepPart() : part->second;
                        },
                        simulation.memory_points};
  WriteChromeTrace((traces / ("step_" + std::to_string(steps) + ".json")).string(),
                   std::span(&trace, 1));
  AtomicFile file((std::filesystem::path(directory) / "simulate.json").string());
  file.Append(PlanToJson(run.plan, estimate) + "\n");
  file.Commit();
}

}  // namespace

int LocalWorldFor(int world, std::optional<int> asked, const std::optional<Hardware>& hardware) {
  int local = asked.value_or(world);
  std::string from = "--local-world-size";
  if (!asked && hardware && hardware->network) {
    local = std::min(world, static_cast<int>(hardware->network->ranks_per_host));
    from = "network.ranks_per_host of " + hardware->name;
  }
  if (world % local == 0) return local;
  throw ConfigError(from + ": " + std::to_string(local) + " does not divide --world-size " +
                    std::to_string(world) +
                    (asked ? "" : "; --local-world-size says how many ranks a host has"));
}

ExitCode PlanOnHardware(const Recipe& recipe, int world, int local_world,
                        const std::optional<Hardware>& hardware, bool json) {
  if (!hardware) return PlanProcess(recipe, world, local_world, hardware, json);
  return PlanProcess(recipe, world, local_world, hardware, json, [&](ResolvedRun& run) {
    std::optional<StepEstimate> estimate;
    try {
      const auto simulation = SimulateAndPlan(run, *hardware, {});
      if (simulation) estimate = EstimateOf(run, *hardware, *simulation);
    } catch (const ConfigError& error) {  // Memory is known all the same.
      if (!json) std::cerr << "no times: " << error.what() << "\n";
    }
    return estimate;
  });
}

ExitCode SimulateProcess(const Recipe& recipe, int world, int local_world, const Hardware& hardware,
                         SimulateOptions options, const std::string& directory, bool json) {
  options.trace = !directory.empty();
  return PlanProcess(recipe, world, local_world, hardware, json, [&](ResolvedRun& run) {
    std::optional<StepEstimate> estimate;
    if (const auto simulation = SimulateAndPlan(run, hardware, options)) {
      estimate = EstimateOf(run, hardware, *simulation);
      if (options.trace) WriteDirectory(directory, run, *estimate, *simulation, options.steps);
    }
    return estimate;
  });
}

}  // namespace fsdp
