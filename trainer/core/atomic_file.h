// Files that are complete or not there, and never somebody else's; locks keep their writers apart.
#ifndef FSDP_TRAIN_TRAINER_CORE_ATOMIC_FILE_H_
#define FSDP_TRAIN_TRAINER_CORE_ATOMIC_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/core/read_file.h"
#include "trainer/core/unique_fd.h"

namespace fsdp {

// Locks between processes on a file or directory that they have open: flock(2). A lock belongs to
// the open file that open(2) made: a second open(2) in the same process is kept out too. The lock
// ends when its last descriptor is closed, so at the latest with its process. Over NFS, Linux
// shares locks of files between hosts, but not those of directories.
enum class LockMode { kShared, kExclusive };
enum class LockResult {
  kHeld,
  kBusy,  // Another lock is in the way.
  kNone,  // Locking failed, mostly because the file system has no locks; errno says why.
};
LockResult TryLock(const UniqueFd& file, LockMode mode);  // Never blocks.

// All functions below throw CheckpointError that names the path and the system's reason.

// A file that is being written is called <path> and this suffix, which nobody else uses.
inline constexpr char kUnfinishedSuffix[] = ".fsdp-tmp";

// A file that replaces <path>: it is written beside <path>, synced and renamed, and the directory
// is synced. After a crash or a power cut at any point the old or the new file is there, whole.
//
// Replaces only a regular file or nothing. A link stays, and its target is replaced or made. All
// else is refused, but WriteTo::kPipeToo also writes to a character device or a pipe directly, from
// the first Append() on; a pipe without a reader blocks. A file with the suffix is removed if it
// was left by a process that died; it is refused if it is being written or is no regular file.
enum class WriteTo { kFile, kPipeToo };
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path, WriteTo to = WriteTo::kFile);
  ~AtomicFile();  // Removes an uncommitted file.
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Append(std::string_view bytes);
  void Overwrite(int64_t offset, std::string_view bytes);  // Only appended bytes.
  void Commit();                                           // Once. Blocks on the disk.

 private:
  std::string path_;       // All links followed.
  std::string temporary_;  // Empty: written to directly.
  UniqueFd file_;
};

// Replaces `path` by a file of these contents, as above.
void WriteAtomicFile(const std::string& path, std::string_view contents,
                     WriteTo to = WriteTo::kFile);

// Removes the unfinished file of `path` that a process left when it died. Leaves a file that is
// being written and whatever is no regular file. Throws nothing.
void RemoveUnfinished(const std::string& path);

// A regular file's contents, at most so many bytes: see ReadFileText().
std::string ReadWholeFile(const std::string& path, int64_t most_bytes = kMostTextBytes);

// Makes renames, creations and removals in the directory durable. Blocks on the disk.
void SyncDirectory(const std::string& path);

// Makes the directory and all missing ones above it, each synced into its parent.
void CreateDirectories(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_ATOMIC_FILE_H_
