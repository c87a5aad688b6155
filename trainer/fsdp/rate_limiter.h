// Finds the free that the host waits for before a gather, with `limiter: host`. Like the paper's
// runtime, the limiter counts frees and nothing else: units that are kept after forward, and
// parameters that are neither sharded nor fetched from the host, have no limit. With slots, as many
// as limit_all_gathers, the gather waits for the free of its own slot. With a caching allocator the
// limiter is a window over frees: once so many are outstanding, each gather waits for the oldest,
// across steps as within them.
#ifndef FSDP_TRAIN_TRAINER_FSDP_RATE_LIMITER_H_
#define FSDP_TRAIN_TRAINER_FSDP_RATE_LIMITER_H_

#include <deque>
#include <map>
#include <optional>

#include "trainer/fsdp/schedule.h"

namespace fsdp {

// Actions are indices in a list.
class RateLimiter {
 public:
  static constexpr int kLongAgo = -1;

  // `most`: 0 for no limit. `outstanding`: frees of steps before the list.
  RateLimiter(const ScheduleOptions& options, int most, int outstanding = 0)
      : off_(options.limiter == FsdpOptions::Limiter::kDevice || most == 0),
        slots_(options.buffers == FsdpOptions::Buffers::kSlots),
        follows_steps_(options.mode == Mode::kTrain),
        most_(most),
        window_(outstanding, kLongAgo) {}

  // Before the gather into `slot` (-1: none) is listed: the free to wait for, if it waits for any.
  std::optional<int> BeforeGather(int slot) {
    if (off_) return std::nullopt;
    if (slots_) {
      const auto last = last_.find(slot);
      if (last != last_.end()) return last->second;
      return follows_steps_ ? std::optional(kLongAgo) : std::nullopt;
    }
    if (outstanding() < most_) return std::nullopt;
    const int oldest = window_.front();
    window_.pop_front();
    return oldest;
  }

  // A unit was freed in a pass.
  void OnFree(int slot, int action) {
    if (off_) return;
    if (slots_) {
      last_[slot] = action;
    } else {
      window_.push_back(action);
    }
  }

  int outstanding() const { return static_cast<int>(window_.size()); }

 private:
  const bool off_, slots_, follows_steps_;
  const int most_;
  std::deque<int> window_;
  std::map<int, int> last_;  // By slot.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_RATE_LIMITER_H_
