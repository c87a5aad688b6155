// Files that are complete or not there, and never somebody else's.
#ifndef FSDP_TRAIN_TRAINER_CORE_WHOLE_FILE_H_
#define FSDP_TRAIN_TRAINER_CORE_WHOLE_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/core/read_file.h"
#include "trainer/core/unique_fd.h"

namespace fsdp {

// All of this throws CheckpointError that names the path and the system's reason.

// What is written beside its name is called <path> and this: a name that nobody else uses.
inline constexpr char kUnfinishedSuffix[] = ".fsdp-tmp";

// A file on its way to its name: written beside it, synced, renamed, the directory synced. After a
// crash or a power cut at any point the old or the new file is there, whole.
//
// Only a file or nothing is replaced. A link stays: what it points at is replaced, or made. All
// else is refused, but for WriteTo::kPipeToo: a character device and a pipe are then written to as
// they are, from the first Append() on, and a pipe that nobody reads blocks. What is at the name
// beside it is removed if a process that died left it; a file that is being written, and whatever
// is no file, is refused.
enum class WriteTo { kFile, kPipeToo };
class WholeFile {
 public:
  explicit WholeFile(const std::string& path, WriteTo to = WriteTo::kFile);
  ~WholeFile();  // Removes what was not committed.
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void Append(std::string_view bytes);
  void Overwrite(int64_t offset, std::string_view bytes);  // Of what has been appended.
  void Commit();                                           // Once. Blocks on the disk.

 private:
  std::string path_;       // Behind all links.
  std::string temporary_;  // Empty: written to directly.
  UniqueFd file_;
};

// Replaces `path` by a file of these contents, as above.
void WriteWholeFile(const std::string& path, std::string_view contents,
                    WriteTo to = WriteTo::kFile);

// Removes the file beside `path` that a process left which died on its way to it. One that is being
// written stays, as does whatever is no file. Throws nothing.
void RemoveUnfinished(const std::string& path);

// A regular file's contents, at most so many bytes: see ReadFileText().
std::string ReadWholeFile(const std::string& path, int64_t most_bytes = kMostTextBytes);

// What was renamed, made or removed in the directory stays so. Blocks on the disk.
void SyncDirectory(const std::string& path);

// Makes the directory and all that are missing above it, each synced into its parent.
void CreateDirectories(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_WHOLE_FILE_H_
