#include "trainer/bench/whole_step.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/loop/job.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/loop/train.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {
namespace {

constexpr size_t kWarmUp = 2;  // Steps that touch memory for the first time.

}  // namespace

double SecondsOfAStep(Recipe recipe, const ChosenDevice& device, const std::string& directory) {
  recipe.run.dir = directory;
  MemoryStore store(recipe.run.timeout_s);
  Job job;
  job.device = device;
  job.store = &store;
  TrainRank(recipe, job);
  std::vector<double> seconds;
  std::ifstream records(directory + "/metrics.jsonl");
  for (std::string line; std::getline(records, line);) {
    const JsonValue record = ParseJson(line, "", {});
    if (record.At("kind").IsText("step")) seconds.push_back(record.At("step_time_s").Number());
  }
  if (seconds.size() <= kWarmUp) throw ConfigError("a step is timed behind two others");
  const auto begin = seconds.begin() + kWarmUp, middle = begin + (seconds.end() - begin) / 2;
  std::nth_element(begin, middle, seconds.end());
  return *middle;
}

double ReachedBy(double seconds, const Recipe& recipe, Hardware hardware) {
  const ResolvedRun run =
      Resolve(recipe, PlaceToPlan(recipe, /*world=*/1, /*local_world=*/1, hardware));
  hardware.reached = 1;
  // Time that is no kernel's does not change with the share, so the share is found step by step.
  for (double off = 1; off > 1e-9;) {
    const double before = hardware.reached;
    hardware.reached = std::min(1.0, before * Simulate(run, hardware).step_s / seconds);
    off = std::abs(hardware.reached - before);
  }
  return hardware.reached;
}

}  // namespace fsdp
