// The system calls on an open file that holds our own bytes, behind functions that a test replaces:
// a disk that is full, fails, or does half of what it was asked for.
// Tests: tests/trainer/runtime/spill_file_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_FILE_IO_H_
#define FSDP_TRAIN_TRAINER_CORE_FILE_IO_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace fsdp {

// Each as the call that it names: at least -1 and errno, and less than was asked for is no error.
// From any thread.
class FileIo {
 public:
  virtual ~FileIo() = default;

  static FileIo& System();  // Lives as long as the program.

  // open(2), O_TMPFILE: a file of the directory that never has a name.
  virtual int OpenUnnamed(const std::string& directory);
  // posix_fallocate(3): 0, or what else would be in errno.
  virtual int Reserve(int fd, int64_t bytes);
  // From here on, transfers are direct (O_DIRECT): between memory and disk, without the page cache.
  // Returns what their memory must be aligned to, in bytes; 0: the file system has none, and
  // nothing has changed. Offsets and sizes must be multiples of `alignment`, if no file system's is
  // larger; the file has as many bytes. Also 0 where it may not be read.
  virtual int64_t MakeDirect(int fd, int64_t alignment);
  virtual ssize_t ReadAt(int fd, std::byte* to, size_t bytes, int64_t offset);
  virtual ssize_t WriteAt(int fd, const std::byte* from, size_t bytes, int64_t offset);
  virtual int SyncData(int fd);  // fdatasync(2).
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_FILE_IO_H_
