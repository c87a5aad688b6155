// One rank's file of a checkpoint, written from its first byte to its last with the checksums of
// its chunks, and read back.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_RANK_FILE_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_RANK_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// Where a rank stands in the job: rank = replica * F + shard. The replicas of a shard share the
// writing of it.
struct ShardPlace {
  int rank = 0, world = 1;
  int shard = 0, replica = 0, replicas = 1;
};
ShardPlace PlaceOfRank(int rank, int world, int shards);

class RankFileWriter {
 public:
  // A tensor of the file: elements [begin, begin + count) of the flat parameter.
  struct Slice {
    std::string state;
    int flat = 0;  // Of the layout.
    int64_t begin = 0, count = 0;
  };

  // Makes <directory>/rank_<r>.safetensors. The layout is kept. Throws CheckpointError.
  RankFileWriter(const std::string& directory, const Layout& layout, const ShardPlace& place,
                 const std::vector<std::string>& states);

  // In the order of the file: by state, then flat parameter.
  const std::vector<Slice>& slices() const { return slices_; }

  // The next elements of slice `index`, whose slices come in order.
  void Append(size_t index, std::span<const float> values);

  // The first element so far that is NaN or infinite, in words; empty where there is none.
  const std::string& not_finite() const { return not_finite_; }

  // All elements are there: synced to the disk, then read back and held against the checksums of
  // what was appended. That is a read of the page cache, some tenths of a second a GiB, and shows
  // what has gone wrong between our memory and the file system: memory that changed while it was
  // written, a write that went elsewhere or was lost. Throws CheckpointError.
  ManifestFile Finish();

 private:
  void ReadBack() const;

  const Layout& layout_;
  std::vector<Slice> slices_;
  std::vector<std::string> tensors_;  // Their names in the file.
  ManifestFile file_;
  std::optional<SafetensorsWriter> writer_;
  std::optional<ChunkChecksums> checksums_;
  int64_t reached_ = 0;  // Bytes of the file.
  std::string not_finite_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_RANK_FILE_H_
