// A whole checkpoint written by one process, from elements that it reads as it goes: resharding and
// importing. It holds two blocks of them, 4 MiB each, however large the model is.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WRITER_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// What goes into it. Ranks as in a job of `world` whose strategy shards over layout.shards.
struct WholeCheckpoint {
  CheckpointMeta meta;
  Layout layout;
  int world = 1;
  std::vector<std::string> states;  // Each of fp32 per element.
  std::vector<OwnTensor> buffers = {};
};

// Fills `out` with elements [begin, begin + out.size()) of a parameter's state. One call at a time,
// on any thread.
using ReadElements = std::function<void(const std::string& state, const Placement& parameter,
                                        int64_t begin, std::span<float> out)>;
// The same of a buffer, in its dtype. May be null where there are none.
using ReadBuffer = std::function<void(const OwnTensor& buffer, int64_t begin, const View& out)>;
// How far a long job is: bytes, of all there are. Called often, from the thread that works.
using ByteProgress = std::function<void(int64_t done, int64_t total)>;

// Makes the directory `out` (and its parents) with all ranks' files and the manifest: written and
// synced under another name, then renamed, so it is complete or not there. Asks `read` for the
// elements file by file, each in the order of states, flat parameters and places; padding becomes
// zero. `progress` may be null. Throws CheckpointError where `out` is there already (it is never
// overwritten), where it is being written by somebody else, or for what `read` and the disk refuse;
// nothing of it is then left. What a dead process left unfinished (new_directory.h) is replaced.
// std::invalid_argument for a world that is no multiple of F.
SavedCheckpoint WriteCheckpoint(const std::string& out, const WholeCheckpoint& checkpoint,
                                const ReadElements& read, const ByteProgress& progress,
                                const ReadBuffer& read_buffer = nullptr);

// The same parameters at the same offsets, in `shards` shards.
Layout Relayout(const std::vector<FlatParameter>& flats, int shards);

// The checkpoint `source` as a job of `world` ranks and F = `shards` would have written it: each
// state in its own format.
SavedCheckpoint ReshardCheckpoint(CheckpointHold source, int world, int shards,
                                  const std::string& out, const ByteProgress& progress);
SavedCheckpoint ReshardCheckpoint(const std::string& source, int world, int shards,
                                  const std::string& out, const ByteProgress& progress);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WRITER_H_
