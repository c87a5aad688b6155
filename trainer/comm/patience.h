// How long to wait for others.
// Tests: tests/e2e/start_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_PATIENCE_H_
#define FSDP_TRAIN_TRAINER_COMM_PATIENCE_H_

#include <algorithm>
#include <chrono>

namespace fsdp {

// Counts the time in which this process was running. One that was itself stopped (SIGSTOP, a
// debugger, a virtual machine that was paused) may have been stopped together with those that it
// waits for, and has not given them any time meanwhile. One that goes on running notices a peer
// that does not as it would by a clock.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  // To be asked this often. What lies between two questions counts for no more than kLongest.
  static constexpr std::chrono::milliseconds kTick{100};
  static constexpr std::chrono::milliseconds kLongest{1000};

  explicit Patience(Clock::duration patience) : left_(patience) {}

  bool over() {
    const Clock::time_point now = Clock::now();
    left_ -= std::min<Clock::duration>(now - last_, kLongest);
    last_ = now;
    return left_ <= Clock::duration::zero();
  }
  // Until the next question.
  Clock::duration tick() const {
    return std::clamp<Clock::duration>(left_, Clock::duration::zero(), kTick);
  }

 private:
  Clock::time_point last_ = Clock::now();
  Clock::duration left_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_PATIENCE_H_
