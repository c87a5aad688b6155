// The safetensors format (github.com/huggingface/safetensors, README.md, "Format"), little-endian:
//
//   8 bytes   N, an unsigned integer: the bytes of the header, at most 100 000 000
//   N bytes   a JSON object, UTF-8, that begins with '{' and may end in spaces:
//               {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//                "__metadata__": {"text": "text", ...}}
//   the rest  the tensors, row-major; offsets count from its first byte, leave no gap, do not
//             overlap and end where the file ends
//
// All offsets and sizes below are bytes unless they say elements; `byte_begin` and `element_begin`
// count from the tensor's own start. Every call blocks until the file system has answered.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_SAFETENSORS_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/unique_fd.h"

namespace fsdp {

enum class SafetensorsType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

int64_t SizeOf(SafetensorsType type);         // Bytes of one element.
std::string_view Name(SafetensorsType type);  // The file's: "F32", "BF16", ...
SafetensorsType ToSafetensorsType(DType dtype);

struct SafetensorsInfo {
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<int64_t> shape;  // Any rank; a dimension may be 0.
  int64_t begin = 0;           // In the file, not in its data.
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
  int64_t NumElements() const { return bytes() / SizeOf(type); }
};

// An open file whose header has been checked against everything above before the constructor
// returns; a file that disagrees with itself is refused. Tensor bytes are read only where asked
// for, so a rank reads its own ranges and needs memory for no more.
//
// A fault of the file is CheckpointError with the file's name and the reason. A range outside a
// tensor is the caller's fault: std::invalid_argument. const calls may run in parallel.
class SafetensorsReader {
 public:
  static constexpr int64_t kMaxHeaderBytes = 100'000'000;

  explicit SafetensorsReader(const std::string& path);
  // Reads a file that is open, or that open(2) has just failed to open. `path` names it in
  // messages.
  SafetensorsReader(const std::string& path, UniqueFd file);

  const std::string& path() const { return path_; }
  int64_t file_bytes() const { return file_bytes_; }
  const std::vector<std::string>& Names() const { return names_; }  // In the order of the data.
  bool Contains(std::string_view name) const;
  // Valid as long as the reader. Throws CheckpointError where there is no such tensor.
  const SafetensorsInfo& Info(std::string_view name) const;
  const std::map<std::string, std::string>& Metadata() const { return metadata_; }

  // Fills `out` with the tensor's bytes [byte_begin, byte_begin + out.size()), unchanged.
  void ReadBytes(std::string_view name, int64_t byte_begin, std::span<std::byte> out) const;

  // Fills `out` with elements [element_begin, element_begin + out.size()) of an F32, F64, BF16 or
  // F16 tensor, F64 rounded to nearest. Throws CheckpointError for another dtype.
  void ReadFloat(std::string_view name, int64_t element_begin, std::span<float> out) const;

 private:
  std::string path_;
  UniqueFd file_;
  int64_t file_bytes_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, SafetensorsInfo> infos_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsEntry {
  std::string name;
  SafetensorsType type;
  std::vector<int64_t> shape;
};

// Writes a file whose tensors are all known beforehand: the constructor fixes every offset, takes
// the space on the disk and writes the header; the data follow in any order and in ranges of any
// size, each byte exactly once. The first 8 bytes stay zero until Finish(), so that a file whose
// writer died is refused by every reader.
//
// A failure of the machine (no space, an I/O error, no permission) is CheckpointError with the path
// and the system's words; the writer is then beyond repair. A wrong name, range or entry is
// std::invalid_argument. WriteBytes may run in parallel with itself.
class SafetensorsWriter {
 public:
  // Creates `path`, or empties it. The data lie by element size, widest first, then in the order of
  // `entries`, so every tensor is aligned to its elements.
  SafetensorsWriter(const std::string& path, std::span<const SafetensorsEntry> entries,
                    const std::map<std::string, std::string>& metadata = {});

  const std::string& path() const { return path_; }
  int64_t file_bytes() const { return file_bytes_; }
  // The file's first bytes as Finish() leaves them, length word included, a multiple of 8: with the
  // data at Info(name).begin, all that a checksum over the file needs.
  const std::string& header() const { return header_; }
  const SafetensorsInfo& Info(std::string_view name) const;

  void WriteBytes(std::string_view name, int64_t byte_begin, std::span<const std::byte> bytes);

  // Completes the header, hands the file to the disk (fsync) and closes it. Throws
  // std::invalid_argument if bytes are missing. The caller must rename the file, to make it count,
  // and fsync its directory.
  void Finish();

 private:
  void WriteAt(int64_t offset, const void* data, size_t bytes) const;
  [[noreturn]] void Fail(const char* what) const;  // Reads errno.

  std::string path_;
  std::string header_;
  UniqueFd file_;
  int64_t file_bytes_ = 0;
  std::unordered_map<std::string, SafetensorsInfo> infos_;

  std::mutex mutex_;
  std::map<int64_t, int64_t> written_;  // begin -> end, disjoint, never touching.
  bool failed_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_SAFETENSORS_H_
