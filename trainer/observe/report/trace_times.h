// Sums over the Chrome traces that a run has left: which operations a step's time goes to.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_TRACE_TIMES_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_TRACE_TIMES_H_

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_TRACE_TIMES_H_
