#include "trainer/checkpoint/checkpoint_hold.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include "trainer/core/atomic_file.h"

namespace fsdp {
namespace {

UniqueFd OpenDirectory(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// False where somebody else's lock is in the way; a file system may have none.
bool Lock(const UniqueFd& directory, LockMode mode) {
  return TryLock(directory, mode) != LockResult::kBusy;
}

bool IsNamed(const UniqueFd& directory, const std::string& path) {
  struct stat held, named;
  return ::fstat(directory.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

}  // namespace

CheckpointHold::CheckpointHold(const std::string& directory) : path_(directory) {
  UniqueFd opened = OpenDirectory(directory);
  if (opened.get() < 0 || !Lock(opened, LockMode::kShared)) return;
  // It may have lost its name between the two calls above.
  if (IsNamed(opened, directory)) directory_ = std::move(opened);
}

CheckpointHold CheckpointHold::OfNothing(const std::string& directory) {
  CheckpointHold hold;
  hold.path_ = directory;
  return hold;
}

CheckpointHold::Place CheckpointHold::PlaceOf(const std::string& file) const {
  if (held()) return {directory_.get(), file};
  return {AT_FDCWD, path_ + "/" + file};
}

UniqueFd CheckpointHold::Open(const std::string& file) const {
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  const Place place = PlaceOf(file);
  return UniqueFd(held() ? ::openat(place.at, place.name.c_str(), kFlags)
                         : ::open(place.name.c_str(), kFlags));
}

bool CheckpointHold::Moved() const {
  struct stat status;
  return held() ? !IsNamed(directory_, path_) : ::stat(path_.c_str(), &status) != 0;
}

std::optional<UniqueFd> LockForRemoval(const std::string& directory) {
  UniqueFd opened = OpenDirectory(directory);
  if (opened.get() < 0 || !Lock(opened, LockMode::kExclusive)) return std::nullopt;
  return opened;
}

bool IsHeld(const std::string& directory) {
  const UniqueFd opened = OpenDirectory(directory);
  return opened.get() >= 0 && !Lock(opened, LockMode::kExclusive);
}

}  // namespace fsdp
