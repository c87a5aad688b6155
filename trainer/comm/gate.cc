#include "trainer/comm/gate.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Not the private kind: the word may be shared between processes.
void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

Gate::Outcome Gate::Judge(uint32_t word, const Ticket& ticket) {
  if ((word & kEpochMask) != ticket.epoch) return Outcome::kPassed;
  if ((word & kAborted) != 0 && !ticket.even_if_aborted) return Outcome::kAborted;
  return Outcome::kWaiting;
}

Gate::Outcome Gate::Arrive(int size, bool even_if_aborted, Ticket* ticket) {
  FSDP_CHECK_LE(size, kMaxSize);
  uint32_t word = word_.load(std::memory_order_acquire);
  for (;;) {
    if ((word & kAborted) != 0 && !even_if_aborted) return Outcome::kAborted;
    const bool last = (word & kArrivedMask) + 1 == static_cast<uint32_t>(size);
    const uint32_t epoch = word & kEpochMask;
    const uint32_t next_epoch = (epoch + kArrivedMask + 1) & kEpochMask;
    const uint32_t next =
        (word & kAborted) | (last ? next_epoch : (epoch | (word & kArrivedMask)) + 1);
    if (!word_.compare_exchange_weak(word, next)) continue;
    if (last) {
      WakeAll();
      return Outcome::kPassed;
    }
    *ticket = {epoch, even_if_aborted};
    return Outcome::kWaiting;
  }
}

Gate::Outcome Gate::Wait(const Ticket& ticket, int spins, std::chrono::nanoseconds for_at_most) {
  for (int i = 0; i < spins; ++i) {
    const Outcome outcome = Judge(word_.load(std::memory_order_acquire), ticket);
    if (outcome != Outcome::kWaiting) return outcome;
    __builtin_ia32_pause();
  }
  const auto deadline = std::chrono::steady_clock::now() + for_at_most;
  Outcome outcome;
  sleepers_.fetch_add(1);
  for (;;) {
    const uint32_t word = word_.load();
    outcome = Judge(word, ticket);
    if (outcome != Outcome::kWaiting) break;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) break;
    const int64_t ns = std::chrono::nanoseconds(left).count();
    const timespec timeout{static_cast<time_t>(ns / 1000000000),
                           static_cast<long>(ns % 1000000000)};
    Futex(word_, FUTEX_WAIT, word, &timeout);  // Whatever it returns: look again.
  }
  sleepers_.fetch_sub(1);
  return outcome;
}

Gate::Outcome Gate::Abort(const Ticket* ticket) {
  const uint32_t before = word_.fetch_or(kAborted);
  WakeAll();
  return ticket != nullptr && (before & kEpochMask) != ticket->epoch ? Outcome::kPassed
                                                                     : Outcome::kAborted;
}

void Gate::WakeAll() {
  if (sleepers_.load() != 0) Futex(word_, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace fsdp
