// The runs in a directory, such as runs/, at a glance.
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_LIST_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_LIST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

struct RunEntry {
  std::string name;                   // Its directory's name.
  std::string path;                   // Its directory's path, which begins with the one given.
  std::optional<int64_t> checkpoint;  // Step of the newest; empty: there is none, or it is damaged.
  std::optional<int64_t> step;        // The last in the end of metrics.jsonl that is read.
  std::optional<double> loss;         // The loss of that step; empty where it is not finite.
  double modified = 0;  // Seconds since 1970: the time of the newer of records and checkpoint.
};

// Directories directly in `directory` that hold records or checkpoints, by name. Hidden ones are
// left out. Reads the last 64 KiB of each file of records. Never throws: what cannot be read is
// left out.
std::vector<RunEntry> ListRuns(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_LIST_H_
