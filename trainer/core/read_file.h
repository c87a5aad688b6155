// Files that are read whole or from end to end, whatever their names lead to: nobody waits for a
// pipe, and memory goes by what a file holds, not by what it says it holds.
#ifndef FSDP_TRAIN_TRAINER_CORE_READ_FILE_H_
#define FSDP_TRAIN_TRAINER_CORE_READ_FILE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// Whether something has that name. A link that leads nowhere does: whoever opens it says so.
bool PathExists(const std::string& path);

// The most bytes of a text that people write or we keep for them: a recipe, a config.json,
// provenance.json.
inline constexpr int64_t kMostTextBytes = int64_t{16} << 20;
// Of texts that may be as large as the disk holds: manifests, indexes. A text has no zero bytes, so
// the first one ends the reading: holes never come to memory.
inline constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();

enum class ReadFrom {
  kFile,  // A regular file, or links to one.
  // A pipe or a character device as well: `--config <(...)`, /dev/stdin. One that gives nothing is
  // refused: it may have been read before, by a launcher, say.
  kPipeToo,
};

// What was read, or why it was not.
struct FileText {
  std::string text;
  std::string why = {};  // Stands behind "<path>: ". Empty: all of it was read.
  int error = 0;         // errno, where `why` is the system's reason.
};

// Never blocks on what is no file: of a pipe it waits for those who have it open for writing, and 5
// seconds for the first of them. Reads no more than most_bytes, also where the file grows.
FileText ReadFileText(const std::string& path, int64_t most_bytes, ReadFrom from = ReadFrom::kFile);
// A regular file's, found as openat(2) finds `path` below the descriptor of a directory.
FileText ReadFileTextAt(int directory, const std::string& path, int64_t most_bytes);

// A regular file's bytes in order, in blocks of up to 256 KiB. A hole of any length comes out as
// one block of zeros.
class FileBlocks {
 public:
  // Throws CheckpointError with path and reason, as Next() does: no regular file, or the disk.
  explicit FileBlocks(const std::string& path);

  int64_t bytes() const { return bytes_; }  // Of the file, when it was opened.
  // Empty at the end. Valid until the next call.
  std::string_view Next();
  // Zeros that follow the last block in the file and are left out.
  int64_t skipped() const { return skipped_; }

 private:
  std::string path_;
  UniqueFd file_;
  int64_t bytes_ = 0, at_ = 0, skipped_ = 0;
  std::vector<char> block_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_READ_FILE_H_
