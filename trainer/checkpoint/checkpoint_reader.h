// Elements of a checkpoint by state, parameter and index, whatever world, F and wrapping wrote it.
// Every byte that comes back has passed its chunk's checksum.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_READER_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/checkpoint/checkpoint_hold.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/view.h"

namespace fsdp {

// Used by one thread. Holds the manifest, one chunk (64 MiB at most), some open files, and the
// directory, which its run does not remove as long.
// Everything throws CheckpointError that names the file and what is wrong with it.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& directory);  // Reads the manifest.

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }

  bool HasState(const std::string& state) const;
  // Null where there is no parameter of this name.
  const Placement* Find(const std::string& parameter) const;

  // Fills `out` with elements [begin, begin + out.size()) of the parameter. Fast in the order of
  // the files: by state, then by place in its flat parameter. Throws CheckpointError also where
  // there is no such state or parameter, or its shape is not `shape`; std::invalid_argument for a
  // range outside it.
  void Read(const std::string& state, const std::string& parameter, const Shape& shape,
            int64_t begin, std::span<float> out);

 private:
  struct Location {
    const FlatParameter* flat = nullptr;
    const Placement* placement = nullptr;
  };

  void ReadBytes(int file, int64_t begin, std::span<std::byte> out);
  // The chunk's bytes into `out`, which has its size, verified.
  void ReadChunk(int file, int64_t chunk, std::span<std::byte> out);
  int Open(int file);

  const std::string directory_;
  const CheckpointHold hold_;
  const Manifest manifest_;
  const Extents extents_;
  std::unordered_map<std::string, Location> locations_;
  std::map<int, FileDescriptor> open_;
  int buffered_file_ = -1;  // Whose chunk buffer_ holds; -1: nobody's.
  int64_t buffered_chunk_ = -1;
  std::vector<std::byte> buffer_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_READER_H_
