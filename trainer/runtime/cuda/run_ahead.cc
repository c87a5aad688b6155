#include "trainer/runtime/cuda/run_ahead.h"

#include <atomic>
#include <chrono>

#include "trainer/core/check.h"
#include "trainer/runtime/cuda/await.h"

namespace fsdp {
namespace {

constexpr std::chrono::milliseconds kAskEvery{10};

}  // namespace

int64_t RunAhead::Outstanding() const {
  return put_ - std::atomic_ref(*word_).load(std::memory_order_acquire);
}

void RunAhead::Take(int64_t operations) {
  FSDP_CHECK_LE(operations, kMostAtOnce);
  if (put_ - marked_ >= kBetweenMarks) {
    marked_ = put_++;  // The mark is an operation, too. The next call finds a CUDA error of this
                       // one.
    (void)write_value_(stream_, reinterpret_cast<uintptr_t>(word_), marked_, /*flags=*/0);
  }
  put_ += static_cast<uint32_t>(operations);
  if (Outstanding() <= kMostOutstanding) return;
  using Clock = std::chrono::steady_clock;
  Clock::time_point asked = Clock::now();
  Await([&] {
    if (Outstanding() <= kMostOutstanding) return true;
    if (Clock::now() - asked < kAskEvery) return false;
    asked = Clock::now();
    return !works_();
  });
}

}  // namespace fsdp
