// The runs in a directory, such as runs/, at a glance.
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_LIST_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_LIST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

struct RunEntry {
  std::string name;                   // Of its directory.
  std::string path;                   // The directory's, in it that which was given.
  std::optional<int64_t> checkpoint;  // Step of the newest; empty: none, or it is damaged.
  std::optional<int64_t> step;        // The last in metrics.jsonl, as far as its end says.
  std::optional<double> loss;         // Of that step; empty where it is not finite.
  double modified = 0;  // Seconds since 1970: of the newest of records and checkpoint.
};

// Directories directly in `directory` that hold records or checkpoints, by name. Hidden ones are
// left out. Of each file of records the last 64 KiB are read. Never throws: what cannot be read is
// left out.
std::vector<RunEntry> ListRuns(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_LIST_H_
