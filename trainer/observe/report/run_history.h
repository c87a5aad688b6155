// A run's history as its directory tells it, in memory that does not grow with the run.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_RUN_HISTORY_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_RUN_HISTORY_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/observe/metrics.h"
#include "trainer/observe/report/series.h"
#include "trainer/observe/report/traces.h"

namespace fsdp {

// Parts of a run's time: those of a step (metrics.h), then what lies between steps.
constexpr size_t kStepParts = kTimeParts.size();
constexpr auto kRunParts = [] {
  std::array<std::string_view, kStepParts + 3> names;
  for (size_t i = 0; i < kStepParts; ++i) names[i] = kTimeParts[i].name;
  names[kStepParts] = "evaluation";
  names[kStepParts + 1] = "sampling";
  names[kStepParts + 2] = "checkpoint";
  return names;
}();

// Keys in the order of the file, such as "optimizer.lr", and values as text.
using FlatText = std::vector<std::pair<std::string, std::string>>;

struct RunHistory {
  struct Start {
    std::string started, version, git, device;
    int64_t world_size = 0, threads = 0;
    std::string resumed_from{};  // Empty: from the beginning.
    int64_t resumed_step = 0;
    std::vector<std::string> recipe_changed{};  // "optimizer.lr: 3.0e-4 -> 0.001".
  };
  struct Sample {
    int64_t step = 0;
    std::string prompt, text;  // Cut at 8 KiB.
  };
  struct Incident {
    int64_t step = 0;
    std::string what;
  };

  explicit RunHistory(size_t buckets);

  std::string directory;  // As given.
  std::string name;
  int64_t parameters = 0, steps = 0;  // As the last start says.
  std::vector<Start> starts;          // The last 100.
  int64_t num_starts = 0;

  Series loss, grad_norm, lr, step_time, tokens_per_s, tflops, mfu;  // By step.
  Series allocated, active, reserved;                                // Bytes.
  Series max_load, expert_entropy;                                   // A mixture's (ExpertLoads).
  ExpertsRecord loads;                                               // The last.
  // By step: tokens and recorded seconds since the beginning. They never fall.
  Series tokens_so_far, seconds_so_far;
  std::map<std::string, Series> evals;  // By name; at most 32 names.
  Series checkpoints, resumes;          // y = 0.
  int64_t last_step = 0;
  double tokens = 0;                               // Targets.
  bool of_samples = false;                         // One of each sample.
  std::array<double, kRunParts.size()> seconds{};  // Sums over the whole run.
  bool has_parts = false;                          // Some step record has "time".
  double step_seconds = 0;                         // Sum of step_time_s over steps,
  double step_tokens = 0;                          // and of what tokens_per_s makes of it.

  double WholeTime() const;  // All seconds that are recorded.

  std::vector<Sample> samples;  // The first and the last 7.
  int64_t num_samples = 0;
  std::vector<Incident> incidents;  // Skipped steps, losses that are not finite; the first 100.
  int64_t num_incidents = 0;
  std::optional<std::string> end;  // Reason; absent: running, or killed.

  int64_t records = 0;
  int64_t broken = 0;       // Lines that are no record.
  bool unfinished = false;  // The last line has no end yet.

  FlatText recipe, provenance;     // Empty where the file cannot be read.
  std::vector<std::string> notes;  // Files that could not be read, and why.
  std::optional<TraceTimes> traced;
};

// Curves get at most 4 x `buckets` points each. Throws CheckpointError where the directory or its
// metrics.jsonl is missing, with what to do about it; all else that cannot be read is a note.
RunHistory ReadRun(const std::string& directory, size_t buckets);

FlatText FlattenYaml(const std::string& yaml);  // Throws std::runtime_error.
FlatText FlattenJson(const std::string& json);  // Throws the same.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_RUN_HISTORY_H_
