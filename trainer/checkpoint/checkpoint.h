// Sharded checkpoints: each rank writes and reads byte ranges of its own; no collective moves data,
// no rank needs memory for more than its shard, and what is on disk is complete or does not count.
//
//   <checkpoints>/step_<n>/manifest.json, rank_<r>.safetensors ...
//   <checkpoints>/latest     the name of the newest complete one
//
// Saving: every rank writes into <checkpoints>/step_<n>.tmp, syncs, and reads back what it wrote;
// when all have said so through the Store, rank 0 writes the manifest, syncs, sees that the files
// are there as it says, renames the directory, syncs its parent, and then replaces `latest` by
// rename. Only then are older ones removed that KeptCheckpoints does not keep: by age and recorded
// loss alone, because the one that was verified as written is the newest. A crash at any point
// leaves the last complete checkpoint and `latest` as they were, and at most a step_<n>.tmp, which
// does not count and which the next save removes.
//
// A step that is there already is exchanged for the new one in one rename. Where the file system
// cannot exchange, it is set aside as step_<n>.old first, which counts as long as there is no
// step_<n>.
//
// Which directories count is in checkpoint_directory.h, the format of manifest.json in manifest.h.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/rank_file.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/comm/store.h"
#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"
#include "trainer/runtime/spill_memory.h"

namespace fsdp {

// One state, in host memory; dtypes are those of the Views. `shards`, of kElement: this
// rank's shard of each flat parameter; [0] of a frozen flat parameter for all states but "master";
// of these, any may lie in `spill`, and go to and fro in blocks: 1 MiB of memory for a save, 4 MiB
// for a load. `tensors`, of kTensor: the same
// on all ranks but for the values, which those that neither write one (rank_file.h) nor hold it
// leave null; or, of kRows, this rank's rows of each table, without what is nobody's.
struct CheckpointState {
  struct Tensor {
    std::string name, owner;  // OwnTensor's.
    View value;
    int64_t rows = 0;  // kRows: of the whole table.
  };
  std::string name;  // "master", "m", "v", ...; no '/' in it.
  std::vector<View> shards;
  Grid grid = Grid::kElement;
  std::vector<Tensor> tensors{};
  SpillMemory* spill = nullptr;
};

struct SavedCheckpoint {
  std::string path;    // The directory.
  int64_t bytes = 0;   // Of all files.
  double seconds = 0;  // From the call until it counted.
};

// Which checkpoints a save leaves in place.
struct KeptCheckpoints {
  // NOLINTNEXTLINE(google-explicit-constructor): the newest n is most callers' whole wish.
  KeptCheckpoints(int64_t newest, int64_t lowest = 0) : last(newest), best(lowest) {}

  int64_t last;  // The newest so many, this one among them; 0: all.
  int64_t best;  // And so many with the lowest CheckpointMeta::Evaluation::loss.
};

// Called by all ranks with the same arguments but for their shards and meta.records, with all
// device work done: blocks until the checkpoint counts. `attempt` makes the Store's keys of two
// saves different: a number that is the same on all ranks and never used twice in a run. What
// it removes are checkpoints of earlier steps, and of those only files of ours. That removing one
// did not work is no error; one that a reader holds stays until the next save.
//
// Throws CheckpointError, if any rank failed (disk full, say), naming it, on that rank; the others
// throw the same as ToldByAnother, as in together.h. What was complete before stays so, `latest` is
// as it was, and step_<n>.tmp is gone. Where what failed is that a state is not finite, which must
// never become the newest checkpoint, it is an Error with ExitCode::kNotFinite. No rank throws it
// before all have heard of it, so one that ends the job with it takes it from nobody. Throws
// CommError where a rank is lost, std::invalid_argument for shards that do not fit the layout.
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
// shape and element, in byte ranges. Padding becomes zero bytes; where dtypes are not the file's,
// values are converted as conversion.h says. States of the checkpoint that are not asked for are
// left alone, but for buffers; its parameters, and a state's tensors of their own, must be those
// that are. Checks the manifest, the sizes of all files, and the checksum of every chunk it reads,
// so that a damaged element is never used. Files that the manifest does not name are ignored.
// Throws CheckpointError that names what is missing, damaged or too much: a file, a state, a
// parameter, or one of another shape; or the spill directory, where that fails; the shards'
// contents are then unspecified.
LoadedCheckpoint LoadCheckpoint(const std::string& directory, const Layout& layout,
                                const ShardPlace& place,
                                const std::vector<CheckpointState>& states);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_H_
