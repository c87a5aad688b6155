#include "trainer/runtime/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace fsdp {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void SleepWhile(const std::atomic<uint32_t>& word, uint32_t value) {
  while (word.load(std::memory_order_acquire) == value) {
    // Returns at once if the word has changed meanwhile, and may return for no reason.
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
}

void WakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fsdp
