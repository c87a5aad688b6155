// Files as bytes in memory, and the lists of files that recipes name.
#ifndef FSDP_TRAIN_TRAINER_DATA_DATA_FILES_H_
#define FSDP_TRAIN_TRAINER_DATA_DATA_FILES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// The contents of one file, read-only, for as long as this lives. A plain file is mapped: it costs
// address space, and ranks of a host share its pages; it must not be shortened meanwhile (the
// kernel then sends SIGBUS). A name that ends in .gz is decompressed into memory of this process.
class FileContents {
 public:
  enum class As { kContents, kStored };  // kStored: a .gz is mapped as it is.
  // Throws DataError that names the path and the cure: missing, unreadable, no regular file, empty,
  // damaged or cut-off .gz.
  explicit FileContents(std::string path, As as = As::kContents);
  FileContents(FileContents&& other) noexcept;
  FileContents& operator=(FileContents&&) = delete;
  ~FileContents();

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return bytes_; }

 private:
  void Map();
  void Inflate();

  std::string path_;
  std::string_view bytes_;
  std::string inflated_;  // Of a .gz; empty for a mapped file.
  bool mapped_ = false;
};

// Paths in the order given; a glob (`*`, `?`, `[`) stands for its matches in byte order, unless a
// file of that very name exists. A path named twice is read twice. Throws DataError for a glob
// without matches and for an empty list; whether a path exists is left to FileContents.
std::vector<std::string> ExpandPaths(std::span<const std::string> paths);

// What a run was trained on, for the record and for ranks to compare.
struct DataFile {
  std::string path;
  int64_t bytes = 0;  // Of the contents as trained on: a .gz counts decompressed.
  uint64_t hash = 0;  // As in DescribeFile().
  bool operator==(const DataFile&) const = default;
};

inline constexpr int64_t kHashedWhole = 1 << 24;  // Bytes.

// HashBytes() (core/philox.h) of all of it up to kHashedWhole, 16 MiB; of more, of 256 stretches of
// 4096 bytes, evenly spaced from the first to the last byte, and of the size: terabytes of tokens
// are told apart before step 1, in a megabyte of reads a file. A change between the stretches goes
// unseen.
DataFile DescribeFile(std::string path, std::string_view contents);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_DATA_FILES_H_
