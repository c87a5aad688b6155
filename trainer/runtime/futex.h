// Sleeping on a word, which orders only the two sides of that word. std::atomic::wait() of
// libstdc++ orders more: it counts its waiters in a table that unrelated words share.
// ThreadSanitizer takes the table for order between streams. With the table a planted missing wait
// went unseen in 39 of 60 runs, with a futex in none (tests/trainer/runtime/second_net_test.cc, one
// step a run).
// Tests: tests/trainer/runtime/cpu/cpu_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_FUTEX_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace fsdp {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Blocks while word == value, between threads of one process. Whatever the writer did before it
// stored another value with release order is visible afterwards.
inline void SleepWhile(const std::atomic<uint32_t>& word, uint32_t value) {
  while (word.load(std::memory_order_acquire) == value) {
    // Returns at once if the word has changed meanwhile, and may return for no reason.
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
}

// Wakes all who sleep on the word; to be called after each change of it that they wait for. Touches
// the address only, so the word may be gone already.
inline void WakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_FUTEX_H_
