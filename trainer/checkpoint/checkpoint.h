// Sharded checkpoints: each rank writes and reads byte ranges of its own; no collective moves data,
// no rank needs memory for more than its shard, and what is on disk is complete or does not count.
//
//   <checkpoints>/step_<n>/manifest.json, rank_<r>.safetensors ...
//   <checkpoints>/latest     the name of the newest complete one
//
// Saving: every rank writes into <checkpoints>/step_<n>.tmp and syncs; when all have said so through
// the Store, rank 0 writes the manifest, syncs, renames the directory, syncs its parent, and then
// replaces `latest` by rename. Only then are older ones beyond keep_last removed. A crash at any
// point leaves the last complete checkpoint and `latest` as they were.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/comm/store.h"
#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// Where a rank stands in the job: rank = replica * F + shard.
struct ShardPlace {
  int rank = 0, world = 1;
  int shard = 0, replica = 0, replicas = 1;
};

// One flat tensor a unit, this rank's shard: fp32 [shard_size]. `name`: "master", "m", "v", ...
struct CheckpointState {
  std::string name;
  std::vector<View> shards;
};

// What else a run needs to go on, and what a reader wants to know.
struct CheckpointMeta {
  int64_t step = 0;    // Steps that are done.
  int64_t tokens = 0;  // Target tokens seen.
  uint64_t seed = 0;
  std::string recipe;  // As resolved, YAML.
  std::string config;  // The model's shape, JSON text: what a reader without the recipe needs.
};

struct SavedCheckpoint {
  std::string path;   // The directory.
  int64_t bytes = 0;  // Of all files.
};

// Called by all ranks, with all device work done: blocks until the checkpoint counts. `attempt` makes
// the Store's keys of two saves different: a number that is the same on all ranks and never used
// twice in a run. keep_last 0 keeps all. Throws CheckpointError (on every rank, if any rank failed:
// disk full, say; what was complete before stays so) or CommError.
SavedCheckpoint SaveCheckpoint(const std::string& checkpoints, const Layout& layout,
                               const ShardPlace& place, const std::vector<CheckpointState>& states,
                               const CheckpointMeta& meta, Store& store, int64_t attempt,
                               int64_t keep_last);

// The directory of the newest complete checkpoint; empty where there is none. Leftovers of a crash
// do not count.
std::optional<std::string> FindLatestCheckpoint(const std::string& checkpoints);
// That of a step. Throws CheckpointError that lists those there are.
std::string FindCheckpoint(const std::string& checkpoints, int64_t step);

// The manifest without the data. Throws CheckpointError.
CheckpointMeta ReadCheckpointMeta(const std::string& directory);

// Fills this rank's shards from a checkpoint of any world size, F and wrapping: by parameter name,
// shape and element, in byte ranges. Padding becomes zero. Checks the manifest, the sizes of all
// files, and the checksum of every file it reads wholly. Throws CheckpointError that names what is
// missing: a file, a state, a parameter, or one of another shape.
CheckpointMeta LoadCheckpoint(const std::string& directory, const Layout& layout,
                              const ShardPlace& place, const std::vector<CheckpointState>& states);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_
