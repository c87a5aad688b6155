// One rank's file of a checkpoint: written from its first byte to its last with the checksums of
// its chunks, and read back; and held against the manifest.
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
#include "trainer/checkpoint/state_format.h"
#include "trainer/comm/mesh.h"
#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// A rank's place in the job. `rank` is the position on the mesh, so files do not depend on how
// ranks are numbered. The replicas of a shard share the work of writing it.
struct ShardPlace {
  int rank = 0, world = 1;
  int shard = 0, replica = 0, replicas = 1;

  bool operator==(const ShardPlace&) const = default;
};
ShardPlace PlaceOn(const Mesh& mesh);  // The mesh's own rank.

// The shape in the file of a slice of `values` values of an own tensor.
std::vector<int64_t> ShapeInFile(const StateFormat& state, int tensor, int64_t values);

class RankFileWriter {
 public:
  // A tensor of the file: the values of elements [begin, begin + count) of a flat parameter, or a
  // whole own tensor.
  struct Slice {
    int state = 0;  // Index of the state.
    int flat = -1;  // Index in the layout; -1: an own tensor.
    int tensor = -1;
    int64_t begin = 0, count = 0;  // Elements.
    DType dtype = DType::kFloat32;
    int64_t elements_per_value = 1;

    int64_t values() const { return count / elements_per_value; }
  };

  // Makes <directory>/rank_<r>.safetensors. Keeps references to the layout and the states, whose
  // dtypes are by flat parameter of the layout. An own tensor is written by its writer. Without
  // one that is the rank of the first replica that holds its owner's first element; without an
  // owner, rank 0. Throws CheckpointError, and std::invalid_argument for an owner that is not in
  // the layout.
  RankFileWriter(const std::string& directory, const Layout& layout, const ShardPlace& place,
                 const std::vector<StateFormat>& states);

  // In the order of the file: the widest dtype first, then by state, then flat parameter or tensor.
  const std::vector<Slice>& slices() const { return slices_; }

  // The next values of slice `index`, of its dtype. Slices come in order.
  void Append(size_t index, ConstView values);

  // The first element so far that is NaN or infinite, in words; empty where there is none.
  const std::string& not_finite() const { return not_finite_; }

  // Ends the file once all elements are appended: syncs it to the disk, reads it back and compares
  // it with the checksums of the appended values. The read is from the page cache and takes some
  // tenths of a second a GiB. It shows faults between our memory and the file system: memory that
  // changed while it was written, a write that went elsewhere or was lost. Throws CheckpointError.
  ManifestFile Finish();

 private:
  std::string DescribeNotFiniteValue(const Slice& slice, int64_t index, float value) const;
  void AddRows(const StateFormat& state, Slice slice, const ShardPlace& place);
  void ReadBack() const;

  const Layout& layout_;
  const std::vector<StateFormat>& states_;
  std::vector<Slice> slices_;
  std::vector<std::string> tensors_;  // Their names in the file.
  ManifestFile file_;
  std::optional<SafetensorsWriter> writer_;
  std::optional<ChunkChecksums> checksums_;
  int64_t reached_ = 0;  // Bytes of the file.
  std::string not_finite_;
};

// The byte behind the header of a file.
int64_t EndOfHeader(const ManifestFile& file);

// How the file of a rank is not the one that the manifest describes, by its header: the names,
// dtypes, shapes and places of its tensors, and the elements that its rank writes. Empty where it
// is. Takes time in proportion to the manifest and the header.
std::string HeaderDiffers(const Manifest& manifest, int rank, const SafetensorsReader& header);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_RANK_FILE_H_
