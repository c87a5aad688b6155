#include "trainer/runtime/sim/timeline.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

size_t Timeline::AddStream() {
  queues_.emplace_back();
  return queues_.size() - 1;
}

void Timeline::AddWork(size_t stream, double time, const SimWork& work, const Label& label) {
  queues_[stream].items.push_back({time, work, nullptr, /*waits=*/false, label});
}

void Timeline::AddWait(size_t stream, double time, MarkPtr mark, const Label& label) {
  queues_[stream].items.push_back({time, {}, std::move(mark), /*waits=*/true, label});
}

Timeline::MarkPtr Timeline::AddMark(size_t stream, double time) {
  auto mark = std::make_shared<Mark>();
  queues_[stream].items.push_back({time, {}, mark, /*waits=*/false, {}});
  return mark;
}

void Timeline::AdvanceTo(double time) { Advance(time, nullptr); }

void Timeline::AdvanceUntil(const Mark& mark) { Advance(kNever, &mark); }

// Whether the first item of a stream was over; it is gone then.
bool Timeline::EndFirst(size_t stream) {
  Queue& queue = queues_[stream];
  const Item& item = queue.items.front();
  if (item.enqueued > now_) return false;
  const bool is_work = item.mark == nullptr;
  if (is_work && !queue.begun) {
    queue.begun = true;
    queue.left = item.work.seconds;
  }
  if (is_work && (queue.left > 0 || item.work.not_before > now_)) return false;
  if (item.waits && !item.mark->passed) return false;
  if (!is_work && !item.waits) *item.mark = {true, now_};
  if (observer_ && (is_work || item.waits)) {
    observer_(stream, item.label, std::max(queue.free, item.enqueued), now_);
  }
  queue.free = now_;
  queue.begun = false;
  queue.items.pop_front();
  return true;
}

// A mark may let another stream go on, so until none does.
void Timeline::EndWhatIsOver() {
  for (bool any = true; any;) {
    any = false;
    for (size_t stream = 0; stream < queues_.size(); ++stream) {
      while (!queues_[stream].items.empty() && EndFirst(stream)) any = true;
    }
  }
}

double Timeline::RateOf(const SimWork& work) const {
  if (work.resource == SimResource::kNone) return 1;
  double rate = 1 / std::max(1.0, wanted_[static_cast<size_t>(work.resource)]);
  for (const SimOverlap& overlap : overlaps_) {
    const bool runs = wanted_[static_cast<size_t>(overlap.beside)] > 0;
    if (overlap.of == work.resource && runs) rate *= overlap.rate;
  }
  return rate;
}

double Timeline::NextTime(const std::vector<double>& rates) const {
  double next = kNever;
  for (size_t q = 0; q < queues_.size(); ++q) {
    const Queue& queue = queues_[q];
    if (queue.items.empty()) continue;
    const Item& item = queue.items.front();
    if (rates[q] > 0) {
      next = std::min(next, now_ + queue.left / rates[q]);
    } else if (item.enqueued > now_) {
      next = std::min(next, item.enqueued);
    } else if (queue.begun) {
      next = std::min(next, item.work.not_before);
    }
  }
  return next;
}

void Timeline::Advance(double until, const Mark* mark) {
  while (true) {
    EndWhatIsOver();
    if (mark != nullptr ? mark->passed : now_ >= until) return;
    wanted_.fill(0);
    for (const Queue& queue : queues_) {
      if (!Runs(queue)) continue;
      const SimWork& work = queue.items.front().work;
      wanted_[static_cast<size_t>(work.resource)] += work.share;
    }
    rates_.assign(queues_.size(), 0);
    for (size_t q = 0; q < queues_.size(); ++q) {
      if (Runs(queues_[q])) rates_[q] = RateOf(queues_[q].items.front().work);
    }
    const double next = std::min(until, NextTime(rates_));
    FSDP_CHECK(next < kNever) << "streams wait for what nobody has enqueued";
    for (size_t q = 0; q < queues_.size(); ++q) {
      if (rates_[q] == 0) continue;
      double& left = queues_[q].left;
      // Work that ends here is over, whatever the last bits of the difference are.
      left = now_ + left / rates_[q] <= next ? 0 : left - (next - now_) * rates_[q];
    }
    now_ = next;
  }
}

}  // namespace fsdp
