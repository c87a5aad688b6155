// How long to wait for others.
// Tests: tests/trainer/comm/patience_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_PATIENCE_H_
#define FSDP_TRAIN_TRAINER_COMM_PATIENCE_H_

#include <algorithm>
#include <chrono>

namespace fsdp {

// Counts the time in which this process was running. A process that was itself stopped (SIGSTOP, a
// debugger, a paused virtual machine) may have been stopped together with those that it waits for,
// and has given them no time meanwhile. A process that goes on running notices a stopped peer as
// soon as by a clock.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  // over() is to be asked this often. The time between two questions counts for no more than
  // kLongest.
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
