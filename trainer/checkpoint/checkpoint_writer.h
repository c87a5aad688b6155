// A whole checkpoint written by one process, which reads elements as it goes: for resharding and
// importing. The process holds two blocks of elements, 4 MiB each, however large the model is.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WRITER_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// The contents. Ranks are those of a job of `world` whose strategy shards over layout.shards.
struct WholeCheckpoint {
  CheckpointMeta meta;
  Layout layout;
  int world = 1;
  std::vector<std::string> states;  // Each has fp32 per element.
  std::vector<OwnTensor> buffers = {};
  std::map<std::string, std::string> beside = {};  // Further files, by name: their contents.
};

// Fills `out` with elements [begin, begin + out.size()) of a parameter's state. One call at a time,
// on any thread.
using ReadElements = std::function<void(const std::string& state, const Placement& parameter,
                                        int64_t begin, std::span<float> out)>;
// Fills `out` with elements of a buffer, in its dtype. May be null where there are no buffers.
using ReadBuffer = std::function<void(const OwnTensor& buffer, int64_t begin, const View& out)>;
// Progress of a long job: bytes done, and all bytes. Called often, from the working thread.
using ByteProgress = std::function<void(int64_t done, int64_t total)>;

// Makes the directory `out` (and its parents) with all ranks' files and the manifest: written and
// synced under another name, then renamed, so `out` is complete or missing. Asks `read` for the
// elements file by file, each in the order of states, flat parameters and places; padding becomes
// zero. `progress` may be null. Throws CheckpointError where `out` exists (it is never
// overwritten), where another process is writing it, or where `read` or the disk fails; nothing of
// `out` is then left. Replaces the unfinished directory of a dead process (new_directory.h).
// std::invalid_argument for a world that is no multiple of F.
SavedCheckpoint WriteCheckpoint(const std::string& out, const WholeCheckpoint& checkpoint,
                                const ReadElements& read, const ByteProgress& progress,
                                const ReadBuffer& read_buffer = nullptr);

// A layout with the same parameters at the same offsets, in `shards` shards.
Layout Relayout(const std::vector<FlatParameter>& flats, int shards);

// Writes the checkpoint `source` as a job of `world` ranks and F = `shards` would have written it:
// each state in its own format, and with the same files beside it.
SavedCheckpoint ReshardCheckpoint(CheckpointHold source, int world, int shards,
                                  const std::string& out, const ByteProgress& progress);
SavedCheckpoint ReshardCheckpoint(const std::string& source, int world, int shards,
                                  const std::string& out, const ByteProgress& progress);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WRITER_H_
