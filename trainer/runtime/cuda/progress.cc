#include "trainer/runtime/cuda/progress.h"

#include <atomic>
#include <chrono>

#include "trainer/core/check.h"
#include "trainer/runtime/cuda/cuda_call.h"

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

namespace {

bool Over(uint32_t number, uint32_t reached) { return static_cast<int32_t>(reached - number) >= 0; }

uint32_t Read(uint32_t* word) { return std::atomic_ref(*word).load(std::memory_order_acquire); }

}  // namespace

void Progress::Enter(const StreamPosition& at, bool wait) {
  {
    std::lock_guard lock(mutex_);
    if (open_ && !wait && !wait_ && sections_.back().at.tag == at.tag) return;
  }
  EndSection();
  open_ = true;
  wait_ = wait;
  std::lock_guard lock(mutex_);
  const uint32_t reached = Read(word_);
  while (!sections_.empty() && Over(sections_.front().number, reached)) sections_.pop_front();
  sections_.push_back({at, ++number_});
}

void Progress::EndSection() {
  if (!open_) return;
  open_ = false;
  room_.Take(1);
  (void)write_value_(stream_, reinterpret_cast<uintptr_t>(word_), number_, /*flags=*/0);
}

std::optional<StreamPosition> Progress::Position() const {
  std::lock_guard lock(mutex_);
  const uint32_t reached = Read(word_);
  for (const Section& section : sections_) {
    if (!Over(section.number, reached)) return section.at;
  }
  return std::nullopt;
}

}  // namespace fsdp
