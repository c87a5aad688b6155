#include "trainer/checkpoint/checkpoint_hold.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace fsdp {
namespace {

FileDescriptor OpenDirectory(const std::string& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// False where somebody else's lock is in the way.
bool Lock(const FileDescriptor& directory, int how) {
  while (::flock(directory.get(), how | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) return true;  // No locks here.
  }
  return true;
}

}  // namespace

CheckpointHold::CheckpointHold(const std::string& directory) {
  FileDescriptor opened = OpenDirectory(directory);
  struct stat held, named;
  if (opened.get() < 0 || !Lock(opened, LOCK_SH)) return;
  // It may have lost its name between the two calls above.
  if (::fstat(opened.get(), &held) != 0 || ::stat(directory.c_str(), &named) != 0 ||
      held.st_ino != named.st_ino || held.st_dev != named.st_dev) {
    return;
  }
  directory_ = std::move(opened);
}

std::optional<FileDescriptor> LockForRemoval(const std::string& directory) {
  FileDescriptor opened = OpenDirectory(directory);
  if (opened.get() < 0 || !Lock(opened, LOCK_EX)) return std::nullopt;
  return opened;
}

}  // namespace fsdp
