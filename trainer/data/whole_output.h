// Files of tokens, complete or not there.
#ifndef FSDP_TRAIN_TRAINER_DATA_WHOLE_OUTPUT_H_
#define FSDP_TRAIN_TRAINER_DATA_WHOLE_OUTPUT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

// A file written beside its name and renamed when it is whole. Throws DataError with path and
// reason for all that the disk refuses; what was written until then is removed.
class WholeOutput {
 public:
  explicit WholeOutput(std::string path);  // Opens path + ".tmp", from the start.
  ~WholeOutput();                          // Removes what was not committed.
  WholeOutput(const WholeOutput&) = delete;
  WholeOutput& operator=(const WholeOutput&) = delete;

  void Append(std::string_view bytes);
  void Overwrite(int64_t offset, std::string_view bytes);  // Of what has been appended.
  // Syncs, renames, syncs the directory. Blocks on the disk.
  void Commit();

 private:
  [[noreturn]] void Fail(int error) const;

  std::string path_, temporary_;
  int fd_ = -1;
};

// Makes it and all above it.
void MakeDirectories(const std::string& path);  // Throws DataError.

// A lock between processes, on a file that stays: flock(2), which ends with the process.
class FileLock {
 public:
  explicit FileLock(const std::string& path);  // Makes the file. Throws DataError.
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // For who has the lock: says that it is busy. For who waits: changes when that is said.
  void Touch();
  int64_t Touched() const;  // Nanoseconds of somebody's clock.

  bool Try();  // False while another has it. Throws DataError where the file system has no locks.

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_WHOLE_OUTPUT_H_
