#include "trainer/checkpoint/checkpoint_hold.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include "trainer/core/file_lock.h"

namespace fsdp {
namespace {

UniqueFd OpenDirectory(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// False where somebody else's lock is in the way; a file system may have none.
bool Lock(const UniqueFd& directory, LockMode mode) {
  return TryLock(directory, mode) != LockResult::kBusy;
}

}  // namespace

CheckpointHold::CheckpointHold(const std::string& directory) {
  UniqueFd opened = OpenDirectory(directory);
  struct stat held, named;
  if (opened.get() < 0 || !Lock(opened, LockMode::kShared)) return;
  // It may have lost its name between the two calls above.
  if (::fstat(opened.get(), &held) != 0 || ::stat(directory.c_str(), &named) != 0 ||
      held.st_ino != named.st_ino || held.st_dev != named.st_dev) {
    return;
  }
  directory_ = std::move(opened);
}

std::optional<UniqueFd> LockForRemoval(const std::string& directory) {
  UniqueFd opened = OpenDirectory(directory);
  if (opened.get() < 0 || !Lock(opened, LockMode::kExclusive)) return std::nullopt;
  return opened;
}

}  // namespace fsdp
