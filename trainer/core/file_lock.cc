#include "trainer/core/file_lock.h"

#include <sys/file.h>

#include <cerrno>

namespace fsdp {

LockResult TryLock(const UniqueFd& file, LockMode mode) {
  const int operation = (mode == LockMode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
  while (::flock(file.get(), operation) != 0) {
    if (errno == EWOULDBLOCK) return LockResult::kBusy;
    if (errno != EINTR) return LockResult::kNone;
  }
  return LockResult::kHeld;
}

}  // namespace fsdp
