// Files as bytes in memory, and the lists of files that recipes name.
// Tests: tests/trainer/data/data_files_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_DATA_FILES_H_
#define FSDP_TRAIN_TRAINER_DATA_DATA_FILES_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/decompress.h"

namespace fsdp {

class MappingGuard;

// The contents of one file, read-only, for as long as this lives. A plain file is mapped: it costs
// address space, and ranks of a host share its pages. If the file becomes shorter meanwhile, the
// lost part reads as zeros: a reader must call CheckIntact() before it uses the bytes. A process
// that opens thousands of small files reads the last of them into its memory. A name that ends in
// .gz or .zst is decompressed into memory of this process, if it has room for it.
class FileContents {
 public:
  static constexpr size_t kBeginBytes = 64 << 10;
  enum class As {
    kContents,
    kStored,  // A compressed file is mapped as it is.
    kBegin    // A compressed file is decompressed up to kBeginBytes.
  };
  // Throws DataError that names the path and the cure: missing, unreadable, no regular file, empty,
  // damaged or cut-off .gz or .zst, or one that would take all memory.
  explicit FileContents(std::string path, As as = As::kContents);
  // kContents, with a limit: refuses a compressed file with more than `most` bytes, with `why`
  // behind the number, before it takes memory for more.
  FileContents(std::string path, size_t most, const std::string& why);
  FileContents(FileContents&& other) noexcept;
  FileContents& operator=(FileContents&&) = delete;
  ~FileContents();

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return bytes_; }

  // Throws DataError that names the file where it has become shorter since it was opened, or a part
  // could not be read: bytes read before this call may be zeros. Costs one stat(2) for a mapped
  // file. A file that was replaced by rename is whole.
  void CheckIntact() const;

 private:
  void CheckThere() const;
  void Map();
  void ReadSmall(int file, size_t size);
  void Inflate(size_t most);

  std::string path_;
  std::string_view bytes_;
  HeapBytes inflated_;  // The contents of a file that is not mapped.
  bool mapped_ = false;
  dev_t device_ = 0;  // The mapped file's, like the next.
  ino_t inode_ = 0;
  std::unique_ptr<const MappingGuard> guard_;
};

// Paths in the order given; a glob (`*`, `?`, `[`) stands for its matches in byte order, unless a
// file of that very name exists. A path named twice is read twice. Throws DataError, with `where`
// in front, for a path that does not exist, a glob without matches and an empty list.
std::vector<std::string> ExpandPaths(std::span<const std::string> paths,
                                     const std::string& where = "data");
// ExpandPaths() for text: a directory stands for its files in byte order, without hidden ones and
// without its directories'. DataError for a directory without such files.
std::vector<std::string> ExpandTextPaths(std::span<const std::string> paths,
                                         const std::string& where = "data");

// "a.txt", "a.txt and 1 more file": the first of so many.
std::string AndMoreFiles(const std::string& first, size_t files);

// A file that a run reads, for the record and for ranks and later runs to compare.
struct DataFile {
  std::string path;
  int64_t bytes = 0;  // Decompressed size.
  uint64_t hash = 0;  // As in DescribeFile().
  bool operator==(const DataFile&) const = default;
};

// All of a run's, in the recipe's order: a file that is named twice is there twice.
struct DataFiles {
  std::vector<DataFile> train;  // With the tokenizer where text goes through one.
  std::vector<DataFile> valid;  // Files of evaluations that have their own.
  bool operator==(const DataFiles&) const = default;
};

inline constexpr int64_t kHashedWhole = int64_t{1} << 30;  // Bytes.

// XXH3 (64 bits) of the whole file up to kHashedWhole, a GiB. For a larger file, the hash of its
// size and of 256 stretches of 4096 bytes, evenly spaced from the first to the last byte: a change
// between the stretches goes unseen. Throws as FileContents::CheckIntact() does. Reads at memory
// speed where the file lies in the page cache.
DataFile DescribeFile(const FileContents& file);

// A sentence for each file of two lists that is not the same, with sizes and hashes of both; empty
// where the lists hold the same contents in the same order, whatever the paths: data may move.
std::vector<std::string> DataChanges(const std::vector<DataFile>& before,
                                     const std::vector<DataFile>& now);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_DATA_FILES_H_
