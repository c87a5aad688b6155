// Files that are read whole or from end to end, whatever their names lead to. No read hangs on a
// pipe. Memory is taken for the bytes that come, not for the size that the file claims.
#ifndef FSDP_TRAIN_TRAINER_CORE_READ_FILE_H_
#define FSDP_TRAIN_TRAINER_CORE_READ_FILE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// Whether something has that name. True for a link that leads nowhere: opening it gives the error.
bool PathExists(const std::string& path);

// The most bytes of a text that people write or we keep for them: a recipe, a config.json,
// provenance.json.
inline constexpr int64_t kMostTextBytes = int64_t{16} << 20;
// The limit for texts as large as the disk holds: manifests, indexes. A text has no zero bytes, so
// the first zero byte ends the reading, and holes never come to memory.
inline constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();

enum class ReadFrom {
  kFile,  // A regular file, or links to one.
  // A pipe or a character device as well: `--config <(...)`, /dev/stdin. An empty one is refused: a
  // launcher, say, may have read it before.
  kPipeToo,
};

// The text, or why there is none.
struct FileText {
  std::string text;
  std::string why = {};  // Follows "<path>: ". Empty: all was read.
  int error = 0;         // errno, where `why` is the system's reason.
};

// Waits 5 seconds for the first writer of a pipe, and for all who have the pipe open for writing;
// blocks on nothing else that is no file. Reads at most most_bytes, also where the file grows.
FileText ReadFileText(const std::string& path, int64_t most_bytes, ReadFrom from = ReadFrom::kFile);
// The text of a regular file, found as openat(2) finds `path` below the descriptor of a directory.
FileText ReadFileTextAt(int directory, const std::string& path, int64_t most_bytes);

// Whether a file that begins so is a pointer of Git LFS (github.com/git-lfs/git-lfs, docs/spec.md),
// which a clone without LFS has in place of a large file; and the words for one.
bool IsLfsPointer(std::string_view begin);
inline constexpr char kLfsPointer[] =
    "is a pointer of Git LFS, not the file itself: `git lfs pull` in its directory fetches it";

// A regular file's bytes in order, in blocks of up to 256 KiB. A hole of any length comes out as
// one block of zeros.
class FileBlocks {
 public:
  // Throws CheckpointError with path and reason where the path is no regular file and where the
  // disk fails. So does Next().
  explicit FileBlocks(const std::string& path);

  int64_t bytes() const { return bytes_; }  // The file's, when it was opened.
  // Empty at the end. Valid until the next call.
  std::string_view Next();
  // Zeros behind the last block that are left out.
  int64_t skipped() const { return skipped_; }

 private:
  std::string path_;
  UniqueFd file_;
  int64_t bytes_ = 0, at_ = 0, skipped_ = 0;
  std::vector<char> block_;
};

// One step for elements [begin, begin + count) of the copy, in one of two buffers, 0 and 1, by
// turns.
using BlockStep = std::function<void(int buffer, int64_t begin, int64_t count)>;

// A long copy in two steps that run side by side: one reads a block, the other uses it.
// Cuts [0, size) into blocks of `block`, the last one shorter, and calls `read` and then `use` for
// each, in order. `use` runs on the calling thread. `read` of the next block runs meanwhile on a
// thread of its own, which has ended when the call returns or throws; the first block is read on
// the calling thread. Throws what a step throws; no step is called after that.
void ReadAhead(int64_t size, int64_t block, const BlockStep& read, const BlockStep& use);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_READ_FILE_H_
