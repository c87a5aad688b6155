// Waits for the GPU without a call that waits in the driver.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_AWAIT_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_AWAIT_H_

#include <algorithm>
#include <chrono>
#include <thread>

namespace fsdp {

// Blocks until `passed()`: yields at first, then sleeps for a sixteenth of the time waited so far,
// 20 us to 1 ms.
template <typename Passed>
void Await(const Passed& passed) {
  using Clock = std::chrono::steady_clock;
  constexpr int kYields = 100, kShare = 16;
  constexpr std::chrono::nanoseconds kShortest{20'000}, kLongest{1'000'000};
  const Clock::time_point begin = Clock::now();
  for (int i = 0; !passed(); ++i) {
    if (i < kYields) {
      std::this_thread::yield();
      continue;
    }
    const std::chrono::nanoseconds waited = Clock::now() - begin;
    std::this_thread::sleep_for(std::clamp(waited / kShare, kShortest, kLongest));
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_AWAIT_H_
