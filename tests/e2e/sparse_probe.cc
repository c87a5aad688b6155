// Preloaded into a process that writes large files of zeros: they take no space on the disk. A
// write of nothing but zeros leaves a hole, which reads back as zeros.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern "C" {

// No space is taken beforehand: the writer then extends the file without it.
int fallocate(int, int, off_t, off_t) {
  errno = EOPNOTSUPP;
  return -1;
}
int fallocate64(int, int, off64_t, off64_t) {
  errno = EOPNOTSUPP;
  return -1;
}

using Pwrite = ssize_t (*)(int, const void*, size_t, off64_t);

static ssize_t WriteUnlessZero(int fd, const void* data, size_t bytes, off64_t offset) {
  static const Pwrite real = reinterpret_cast<Pwrite>(dlsym(RTLD_NEXT, "pwrite64"));
  const auto* at = static_cast<const char*>(data);
  const bool zero = bytes >= 4096 && at[0] == 0 && std::memcmp(at, at + 1, bytes - 1) == 0;
  return zero ? static_cast<ssize_t>(bytes) : real(fd, data, bytes, offset);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return WriteUnlessZero(fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return WriteUnlessZero(fd, data, bytes, offset);
}

}  // extern "C"
