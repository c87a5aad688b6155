// The system calls on files that hold our own bytes, behind functions that a test can replace by
// those of a disk that is full, fails, or transfers half of the bytes.
// Tests: tests/trainer/runtime/spill_file_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_FILE_IO_H_
#define FSDP_TRAIN_TRAINER_CORE_FILE_IO_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace fsdp {

// Each function behaves as the call that it names: -1 and errno on failure; fewer bytes than asked
// for are no error. Any thread may call.
class FileIo {
 public:
  virtual ~FileIo() = default;

  static FileIo& System();  // Lives as long as the program.

  // open(2), O_TMPFILE: a file in the directory that never has a name.
  virtual int OpenUnnamed(const std::string& directory);
  // posix_fallocate(3): 0, or the error number, which is not in errno.
  virtual int Reserve(int fd, int64_t bytes);
  // Makes transfers direct (O_DIRECT) from here on: between memory and disk, without the page
  // cache. Their offsets and sizes must be multiples of `alignment`. Returns the alignment of their
  // memory, in bytes. Returns 0 and changes nothing where the file system has no direct transfers
  // or wants larger multiples, and where the file may not be read. The file has at least
  // `alignment` bytes.
  virtual int64_t MakeDirect(int fd, int64_t alignment);
  virtual ssize_t ReadAt(int fd, std::byte* to, size_t bytes, int64_t offset);
  virtual ssize_t WriteAt(int fd, const std::byte* from, size_t bytes, int64_t offset);
  virtual int SyncData(int fd);  // fdatasync(2).
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_FILE_IO_H_
