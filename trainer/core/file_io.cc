#include "trainer/core/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>

namespace fsdp {

FileIo& FileIo::System() {
  static FileIo io;
  return io;
}

int FileIo::OpenUnnamed(const std::string& directory) {
  // O_EXCL: nor can it be given a name later.
  return ::open(directory.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
}

int FileIo::Reserve(int fd, int64_t bytes) { return ::posix_fallocate(fd, 0, bytes); }

int64_t FileIo::MakeDirect(int fd, int64_t alignment) {
  int64_t memory = alignment;
  struct statx status;
  // Linux 6.1 and file systems that say; others are asked by a transfer.
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    if (status.stx_dio_offset_align == 0 || alignment % status.stx_dio_offset_align != 0) return 0;
    memory = status.stx_dio_mem_align;
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return 0;
  const std::align_val_t aligned{static_cast<size_t>(alignment)};
  void* probe = ::operator new(static_cast<size_t>(alignment), aligned);
  const ssize_t read = ReadAt(fd, static_cast<std::byte*>(probe), alignment, 0);
  ::operator delete(probe, aligned);
  if (read == alignment) return memory;
  return ::fcntl(fd, F_SETFL, flags), 0;
}

ssize_t FileIo::ReadAt(int fd, std::byte* to, size_t bytes, int64_t offset) {
  return ::pread(fd, to, bytes, offset);
}

ssize_t FileIo::WriteAt(int fd, const std::byte* from, size_t bytes, int64_t offset) {
  return ::pwrite(fd, from, bytes, offset);
}

int FileIo::SyncData(int fd) { return ::fdatasync(fd); }

}  // namespace fsdp
