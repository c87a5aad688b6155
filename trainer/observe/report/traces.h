// The Chrome traces that a run or `simulate` has left: which operations a step's time goes to, and
// a step drawn. Tests: tests/trainer/observe/report/traces_test.cc, tests/e2e/sweep_test.cc
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_TRACES_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_TRACES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

struct TraceTimes {
  struct Operation {
    std::string stream, name;  // "wait": the stream waited for another one.
    double seconds = 0;        // A traced step, mean.
    double count = 0;          // The same mean.
  };
  std::vector<std::string> files;     // Names of those that were read: rank 0's.
  std::vector<Operation> operations;  // Longest first.
  double seconds = 0;                 // From the first begin to the last end, mean.
  std::vector<std::string> notes;     // Files that were left out, and why.
};

// Sums over the files `directory`/step_<n>.json, or step_<n>_rank_0.json where there were several
// ranks: the last 16 of at most 64 MiB each. Nothing where there are none.
std::optional<TraceTimes> ReadTraces(const std::string& directory);

// Whether `fsdp-train simulate --out` made it: it has simulate.json, and none of a run's records.
bool IsSimulated(const std::string& directory);

// The last step that each directory has a trace of, as HTML: streams and host over time, waits
// hatched, memory below, all on one scale of seconds and one of bytes. Points of memory
// (core/memory_point.h) are drawn where the trace has them: real runs have those of planned memory
// alone. Directories without a trace say so. Throws CheckpointError where a simulated one cannot be
// read.
std::string StepPictures(const std::vector<std::string>& directories);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_TRACES_H_
