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
  // Throws DataError that names the path and the cure: missing, unreadable, no regular file, empty,
  // damaged or cut-off .gz.
  explicit FileContents(std::string path);
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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_DATA_FILES_H_
