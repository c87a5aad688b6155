// A barrier in one futex word that can be aborted. Lies in memory shared by its users, threads or
// processes; zero bytes are a valid new one.
#ifndef FSDP_TRAIN_TRAINER_COMM_GATE_H_
#define FSDP_TRAIN_TRAINER_COMM_GATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fsdp {

// The word is [aborted : 1][epoch : 21][arrived : 10]. As it changes as a whole, an abort comes
// either before the last arrival, and nobody passes, or after it, and everybody passes: no rank can
// leave memory that another one still reads.
class Gate {
 public:
  static constexpr int kMaxSize = 1023;

  enum class Outcome { kWaiting, kPassed, kAborted };

  // `even_if_aborted`: arrive and pass in any case; then all `size` users must.
  struct Ticket {
    uint32_t epoch = 0;
    bool even_if_aborted = false;
  };

  // kPassed for the last of `size` to arrive, which wakes the others; kWaiting fills *ticket.
  Outcome Arrive(int size, bool even_if_aborted, Ticket* ticket);

  // Polls `spins` times, then sleeps. kWaiting when `for_at_most` is over.
  Outcome Wait(const Ticket& ticket, int spins, std::chrono::nanoseconds for_at_most);

  // Wakes all. kPassed if that was too late for the barrier that *ticket waits for.
  Outcome Abort(const Ticket* ticket = nullptr);

  bool aborted() const { return (word_.load(std::memory_order_acquire) & kAborted) != 0; }

 private:
  static constexpr uint32_t kAborted = 1u << 31;
  static constexpr uint32_t kArrivedMask = kMaxSize;
  static constexpr uint32_t kEpochMask = ~(kAborted | kArrivedMask);

  static Outcome Judge(uint32_t word, const Ticket& ticket);
  void WakeAll();

  // Sequentially consistent where they meet: a waiter counts itself, then the kernel compares the
  // word; the waker changes the word, then reads the count. One of them sees the other.
  std::atomic<uint32_t> word_{0};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_GATE_H_
