#include "trainer/data/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

namespace fsdp {
namespace internal {

// In a list that the signal handler walks without a lock: ranges are added, never freed, and used
// again. An unused one is empty.
struct GuardedRange {
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<bool> lost = false;
  GuardedRange* next = nullptr;
};

}  // namespace internal

namespace {

using internal::GuardedRange;

std::mutex mutex;  // For Add and Remove.
std::atomic<GuardedRange*> ranges = nullptr;
struct sigaction before;  // The earlier signal action.

void OnBusError(int, siginfo_t* info, void*) {
  const int saved = errno;
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (GuardedRange* range = ranges.load(); range != nullptr; range = range->next) {
    const uintptr_t begin = range->begin.load(), end = range->end.load();
    if (at < begin || at >= end) continue;
    // First: another thread may read the zeros as soon as they are there.
    range->lost.store(true);
    const uintptr_t page = at & ~(static_cast<uintptr_t>(::getpagesize()) - 1);
    // The call itself: ThreadSanitizer's mmap() would take it for a write to what others read.
    const long zeros = ::syscall(SYS_mmap, page, end - page, PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == -1) break;
    errno = saved;
    return;  // The faulting access runs again.
  }
  ::sigaction(SIGBUS, &before, nullptr);  // And again, this time as without us.
  errno = saved;
}

void InstallOnce() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &before) == 0;
  }();
  (void)installed;
}

}  // namespace

MappingGuard::MappingGuard(const void* begin, size_t bytes) {
  InstallOnce();
  const std::lock_guard lock(mutex);
  range_ = ranges.load();
  while (range_ != nullptr && range_->end.load() != 0) range_ = range_->next;
  if (range_ == nullptr) {
    range_ = new GuardedRange;
    range_->next = ranges.load();
    ranges.store(range_);
  }
  range_->lost.store(false);
  range_->begin.store(reinterpret_cast<uintptr_t>(begin));
  range_->end.store(reinterpret_cast<uintptr_t>(begin) + bytes);
}

MappingGuard::~MappingGuard() {
  const std::lock_guard lock(mutex);
  range_->end.store(0);
  range_->begin.store(0);
}

bool MappingGuard::lost() const { return range_->lost.load(); }

}  // namespace fsdp
