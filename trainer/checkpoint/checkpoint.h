// Sharded checkpoints. Each rank writes and reads byte ranges of its own; no collective moves data,
// and no rank needs memory for more than its shard. A checkpoint on disk is complete or does not
// count.
//
//   <checkpoints>/step_<n>/manifest.json, rank_<r>.safetensors ...
//   <checkpoints>/latest     the name of the newest complete one
//   <checkpoints>/best       the name of the kept one of least evaluation loss, where one has a
//   loss
//
// Saving: every rank writes into <checkpoints>/step_<n>.tmp, syncs, and reads its file back. When
// all have said so through the Store, rank 0 writes the manifest, syncs, checks the files against
// the manifest, renames the directory, syncs its parent, and then replaces `latest` by rename, and
// `best` where another is the best of those that stay. Only then does it remove older checkpoints
// that KeptCheckpoints does not keep: by age and recorded loss alone, because the newest one has
// been verified as written. A crash at any point leaves the
// last complete checkpoint and `latest` as they were, and at most a step_<n>.tmp, which does not
// count and which the next save removes.
//
// An existing step_<n> is exchanged for the new one in one rename. Where the file system cannot
// exchange, the existing one is first set aside as step_<n>.old, which counts as long as there is
// no step_<n>.
//
// checkpoint_directory.h says which directories count, manifest.h the format of manifest.json.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/rank_file.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/comm/store/store.h"
#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {

// One state, in host memory; dtypes are those of the Views. `shards`, for kElement: this rank's
// shard of each flat parameter; [0] for a frozen flat parameter in all states but "master". For
// kBlock: its absmax, [0] where the state of codes is not in uint8. Shards
// may lie in `spill`; they are then copied in blocks, in 1 MiB of memory for a save, 4 MiB for a
// load. `tensors`, for kTensor: the same on all ranks except the values, which are null on ranks
// that neither write (rank_file.h) nor hold them. `tensors`, for kRows: this rank's rows of each
// table, without rows of no table.
struct CheckpointState {
  struct Tensor {
    std::string name, owner;  // As in OwnTensor.
    View value;
    int64_t rows = 0;                // kRows: the whole table's.
    std::optional<int> writer = {};  // As in OwnTensor.
  };
  std::string name;  // "master", "m", "v", ...; no '/' in it.
  std::vector<View> shards;
  Grid grid = Grid::kElement;
  std::vector<Tensor> tensors{};
  SpillMemory* spill = nullptr;
};

struct SavedCheckpoint {
  std::string path;    // The directory.
  int64_t bytes = 0;   // All files together.
  double seconds = 0;  // From the call until the checkpoint counted.
};

// Which checkpoints a save leaves in place.
struct KeptCheckpoints {
  // NOLINTNEXTLINE(google-explicit-constructor): the newest n is most callers' whole wish.
  KeptCheckpoints(int64_t newest, int64_t lowest = 0) : last(newest), best(lowest) {}

  int64_t last;  // Keep the newest so many, this one included; 0: all.
  int64_t best;  // Also keep so many with the lowest CheckpointMeta::Evaluation::loss.
};

// Saves a checkpoint and blocks until it counts. All ranks call it, with all device work done and
// with the same arguments except their shards and meta.records. `attempt` keeps the Store's keys of
// two saves apart: a number that is the same on all ranks and never used twice in a run.
// Removes only checkpoints of earlier steps, and only our files in them. A failed removal is no
// error, nor is a `best` that cannot be written: there is none then. A checkpoint that a reader
// holds stays until the next save.
//
// Throws CheckpointError on a rank that failed (disk full, say); the message names the rank. The
// others throw the same error as ReportedElsewhere (together.h). Complete checkpoints and `latest`
// then stay as they were, and step_<n>.tmp is gone. For a state that is not finite, which must
// never become the newest checkpoint, the error is an Error with ExitCode::kNotFinite. No rank
// throws before all have heard of the error, so a rank that ends the job with it takes it from
// nobody. Throws CommError where a rank is lost, std::invalid_argument for shards that do not fit
// the layout.
SavedCheckpoint SaveCheckpoint(const std::string& checkpoints, const Layout& layout,
                               const ShardPlace& place, const std::vector<CheckpointState>& states,
                               const CheckpointMeta& meta, Store& store, int64_t attempt,
                               const KeptCheckpoints& kept);

// The manifest without the data. Throws CheckpointError.
CheckpointMeta ReadCheckpointMeta(const std::string& directory);

struct LoadedCheckpoint {
  CheckpointMeta meta;
  std::string converted;  // DescribeConversion(): the same on all ranks.
};

// Fills this rank's shards from a checkpoint of any world size, F and wrapping: by parameter name,
// shape and element, in byte ranges. Padding becomes zero bytes. Values of another dtype are
// converted as state_format.h says. The checkpoint may have further states, but no buffers that
// `states` lack. Its parameters, and a state's tensors of their own, must be the same as here.
// Checks the manifest, the sizes of all files, and the checksum of every chunk that it reads, so
// that a damaged element is never used. Files that the manifest does not name are ignored. Throws
// CheckpointError that names the missing, damaged or surplus file, state or parameter, the
// parameter of another shape, or the failed spill directory; the shards' contents are then
// unspecified.
LoadedCheckpoint LoadCheckpoint(const std::string& directory, const Layout& layout,
                                const ShardPlace& place,
                                const std::vector<CheckpointState>& states);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_
