// Reads elements of a checkpoint by state, parameter and index, whatever world, F and wrapping
// wrote it, and whether in one or by rows (NamedRows, nn/parameter.h). Every returned byte has
// passed its chunk's checksum, and lies in a file whose header has the tensors of the manifest.
// Tests: tests/trainer/checkpoint/checkpoint_test.cc
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_READER_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/view.h"

namespace fsdp {

// For one thread. Holds the manifest, one chunk (64 MiB at most), some open files, and the
// directory, which its run does not remove meanwhile. Reads on if the directory is renamed. All
// functions throw CheckpointError that names the file and its fault.
class CheckpointReader {
 public:
  explicit CheckpointReader(CheckpointHold directory);  // Reads the manifest.
  explicit CheckpointReader(const std::string& directory)
      : CheckpointReader(CheckpointHold(directory)) {}

  const std::string& directory() const { return hold_.path(); }
  const Manifest& manifest() const { return manifest_; }

  bool HasState(const std::string& state) const;
  // Throws where there is no such parameter.
  void RequireParameter(const std::string& parameter, const Shape& shape) const {
    Locate(parameter, shape);
  }
  // Throws CheckpointError for a parameter of which none of these is a row. `whose`: the model that
  // lacks it.
  void RequireNoOther(const std::set<std::string>& parameters, const std::string& whose) const;

  // The three functions fill `out`, of any shape: bit for bit in the file's dtype, or converted to
  // another (state_format.h). With an empty `out` they only check that they could. They are fast in
  // the order of the files: by state, then by place in its flat parameter. They throw
  // CheckpointError also where the state, parameter or tensor is missing or has another grid, shape
  // or dtype, and std::invalid_argument for a range outside it.

  // Elements [begin, begin + n) of the parameter, in a state per element. To be encoded, begin is a
  // multiple of kCodeBlock, and n too unless the parameter ends there.
  void Read(const std::string& state, const std::string& parameter, const Shape& shape,
            int64_t begin, View out);
  void Read(const std::string& state, const std::string& parameter, const Shape& shape,
            int64_t begin, std::span<float> out);
  // The absmax, fp32, of n blocks of a parameter's codes, the first one's elements from `begin` on,
  // a multiple of kCodeBlock. `state`: the kBlock state. Where the checkpoint's values are no
  // codes, they are those with which Read() encodes.
  void ReadAbsmax(const std::string& state, const std::string& parameter, const Shape& shape,
                  int64_t begin, View out);
  // Elements [begin, begin + n) of a state's own tensor.
  void ReadTensor(const std::string& state, const OwnTensor& tensor, int64_t begin, View out);
  // Rows of a kRows state, as `want` describes it: the rows of table `table` that the rank at
  // `position` of `world` has, from its `first` on, one behind the other. One call for all rows
  // reads each byte of the files once.
  void ReadRows(const StateFormat& want, int table, int position, int world, int64_t first,
                View out);

 private:
  struct Location {
    int flat = 0;
    const Placement* placement = nullptr;
    int64_t row = 0;  // Its first, in the whole.
  };
  // By row: all that have rows of the parameter, with theirs counted in it.
  std::vector<Location> Locate(const std::string& parameter, const Shape& shape) const;

  // Where Read() finds a parameter's values in a state per element.
  struct Found {
    DType dtype = DType::kFloat32;
    const FlatParameter* flat = nullptr;
    int64_t offset = 0, size = 0;  // Elements: where the stored parameter is.
    int64_t at = 0;                // Its first element, counted in the one that is read.
  };
  // By row; they have all that is read.
  std::vector<Found> FindValues(const std::string& state, const std::string& parameter,
                                const Shape& shape, DType wanted) const;
  void ReadFound(const std::string& state, const Found& found, int64_t begin, View out);
  void ReadFoundAbsmax(const std::string& state, const Found& found, int64_t begin, View out);
  // Read() of values in another form than codes as codes, and the other way; `absmax` alone is
  // written where there is one. Both work block by block.
  void ReadEncoded(const std::string& state, const Found& found, int64_t begin, int64_t count,
                   uint8_t* codes, float* absmax);
  void ReadDecoded(const std::string& state, const Found& found, int64_t begin, View out);
  const StateFormat& Require(const std::string& state, Grid grid) const;
  void RequireDType(const std::string& state, const std::string& of, DType stored,
                    DType wanted) const;
  // Values of the file's dtype from element `from` on, one for each `elements`.
  void ReadValues(const std::vector<Extent>& extents, DType stored, int64_t from, View out,
                  int64_t elements = 1);
  void ReadBytes(int file, int64_t begin, std::span<std::byte> out);
  // Once a file, before any of its values is read: that it is the one that the manifest describes.
  void RequireHeader(int file);
  void BufferChunk(int file, int64_t chunk);
  // The chunk's bytes into `out`, which has its size, verified.
  void ReadChunk(int file, int64_t chunk, std::span<std::byte> out);
  int Open(int file);

  const CheckpointHold hold_;
  const Manifest manifest_;
  const Extents extents_;
  std::unordered_map<std::string, std::vector<Location>>
      locations_;  // By the whole's name, by row.
  std::map<int, UniqueFd> open_;
  std::set<int> compared_;  // Files whose header is the manifest's.
  int buffered_file_ = -1;  // The file whose chunk buffer_ holds; -1: none.
  int64_t buffered_chunk_ = -1;
  std::vector<std::byte> buffer_, converted_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_READER_H_
