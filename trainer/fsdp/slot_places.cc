#include "trainer/fsdp/slot_places.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace fsdp {
namespace {

// The search ends so near the least that is possible.
constexpr double kNearEnough = 1.02;
constexpr int kTries = 200;
constexpr int64_t kMostLooks = 5'000'000;  // At takes that may be in the way.

struct Take {
  int64_t bytes;
  size_t action;
};

// The takes of such slots, in the schedule's order, and the streams that take them.
std::pair<std::vector<Take>, std::set<StreamId>> TakesOf(const Schedule& schedule,
                                                         const Layout& layout, Resource what,
                                                         int64_t (Layout::*bytes)(int) const) {
  std::pair<std::vector<Take>, std::set<StreamId>> found;
  for (size_t a = 0; a < schedule.actions.size(); ++a) {
    const Action& action = schedule.actions[a];
    for (const Use& use : action.takes) {
      if (use.what != what || use.slot < 0) continue;
      found.first.push_back({(layout.*bytes)(action.unit), a});
      found.second.insert(action.stream);
    }
  }
  return found;
}

SlotPlaces Place(const Schedule& schedule, const std::vector<Take>& takes, int slots, bool wraps) {
  SlotPlaces places{0, std::vector<int64_t>(schedule.actions.size(), -1)};
  std::vector<int64_t> bytes, offsets;
  for (const Take& take : takes) bytes.push_back(take.bytes);
  places.bytes = PlaceInTurn(bytes, slots, wraps, offsets);
  for (size_t t = 0; t < takes.size(); ++t) places.offsets[takes[t].action] = offsets[t];
  return places;
}

// The shortest stretch of takes that the step repeats, the last time in part or whole.
int64_t Period(const std::vector<int64_t>& takes) {
  std::vector<size_t> border(takes.size() + 1, 0);  // Knuth, Morris and Pratt's failure function.
  for (size_t i = 1, k = 0; i < takes.size(); ++i) {
    while (k > 0 && takes[i] != takes[k]) k = border[k];
    if (takes[i] == takes[k]) ++k;
    border[i + 1] = k;
  }
  return static_cast<int64_t>(takes.size() - border.back());
}

// Takes in a row, or on a ring, each apart from the n - 1 on either side of it.
class InTurn {
 public:
  InTurn(std::vector<int64_t> takes, int64_t n, bool ring)
      : takes_(std::move(takes)), n_(n), ring_(ring) {}

  int64_t size() const { return std::ssize(takes_); }
  int64_t looks() const { return size() * (2 * n_ - 1); }  // Passes of Place(), at most.

  // The largest sum of n that follow one another: nothing is less.
  int64_t Least() const {
    int64_t sum = std::accumulate(takes_.begin(), takes_.begin() + n_, int64_t{0}), most = sum;
    for (int64_t i = n_; i < size() + (ring_ ? n_ - 1 : 0); ++i) {
      sum += takes_[i % size()] - takes_[i - n_];
      most = std::max(most, sum);
    }
    return most;
  }

  // One after the other, in this order, as low as there is room. The highest end.
  int64_t Place(const std::vector<int64_t>& order, std::vector<int64_t>& offsets) const {
    offsets.assign(size(), -1);
    int64_t top = 0;
    std::vector<std::pair<int64_t, int64_t>> used;
    for (const int64_t i : order) {
      used.clear();
      for (int64_t j = i - n_ + 1; j < i + n_; ++j) {
        if (!ring_ && (j < 0 || j >= size())) continue;
        const int64_t k = (j + size()) % size();  // On a small ring some come twice.
        if (offsets[k] >= 0) used.push_back({offsets[k], offsets[k] + takes_[k]});
      }
      std::sort(used.begin(), used.end());
      int64_t at = 0;
      for (const auto& [begin, end] : used) {
        if (begin >= at + takes_[i]) break;
        at = std::max(at, end);
      }
      offsets[i] = at;
      top = std::max(top, at + takes_[i]);
    }
    return top;
  }

 private:
  const std::vector<int64_t> takes_;
  const int64_t n_;
  const bool ring_;
};

// The largest first; then, once that gets no lower, in turn. Whoever ends up on top is first in the
// next try. Tries end at `enough`, or when there were `looks`.
int64_t PlaceLow(const InTurn& all, const std::vector<int64_t>& takes, int64_t enough,
                 int64_t& looks, std::vector<int64_t>& best) {
  std::vector<int64_t> in_turn(all.size()), offsets;
  std::iota(in_turn.begin(), in_turn.end(), 0);
  std::vector<int64_t> by_size = in_turn;
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](int64_t a, int64_t b) { return takes[a] > takes[b]; });
  int64_t least = std::numeric_limits<int64_t>::max();
  for (std::vector<int64_t>* order : {&by_size, &in_turn}) {
    for (int t = 0; t < kTries && least > enough; ++t) {
      looks -= all.looks();
      if (looks < 0) return least;
      const int64_t top = all.Place(*order, offsets);
      if (top < least) {
        least = top;
        best = offsets;
      }
      const auto highest = std::find_if(order->begin(), order->end(),
                                        [&](int64_t i) { return offsets[i] + takes[i] == top; });
      std::rotate(order->begin(), highest, highest + 1);
    }
  }
  return least;
}

}  // namespace

int64_t PlaceInTurn(const std::vector<int64_t>& takes, int slots, bool wraps,
                    std::vector<int64_t>& offsets) {
  const auto count = std::ssize(takes);
  offsets.assign(count, 0);
  if (count == 0) return 0;
  const int64_t largest = *std::max_element(takes.begin(), takes.end());
  if (slots == 2) {  // One from below, the other from above.
    int64_t most = largest;
    for (int64_t i = 0; i + 1 < count; ++i) most = std::max(most, takes[i] + takes[i + 1]);
    if (wraps && count % 2 == 0) most = std::max(most, takes.back() + takes.front());
    for (int64_t i = 1; i < count; i += 2) offsets[i] = most - takes[i];
    return most;
  }
  for (int64_t i = 0; i < count; ++i) offsets[i] = i % slots * largest;
  int64_t bytes = slots * largest, looks = kMostLooks;
  if (slots == 1 || count < slots) return bytes;
  const InTurn whole(takes, slots, wraps);
  const auto enough = static_cast<int64_t>(kNearEnough * static_cast<double>(whole.Least()));
  std::vector<int64_t> places;
  const auto place = [&](const InTurn& all, const std::vector<int64_t>& part) {
    const int64_t top = PlaceLow(all, part, enough, looks, places);
    if (top >= bytes) return;
    bytes = top;
    for (int64_t i = 0; i < count; ++i) offsets[i] = places[i % places.size()];
  };
  // Micro-batches repeat what one, or a few, are given.
  const int64_t period = Period(takes);
  for (int64_t n = period; n < count && bytes > enough && looks > 0; n += period) {
    if (n < slots || (wraps && count % n != 0)) continue;
    const std::vector<int64_t> part(takes.begin(), takes.begin() + n);
    place(InTurn(part, slots, /*ring=*/true), part);
  }
  if (bytes > enough) place(whole, takes);
  return bytes;
}

SlotPlaces PlacesOfGathers(const Schedule& schedule, const Layout& layout) {
  if (schedule.gather_slots == 0) return {};
  auto [takes, streams] = TakesOf(schedule, layout, Resource::kValue, &Layout::GatheredBytes);
  // Frozen units wait for no update. If two streams fill the slots as well, one may begin a step
  // ahead of what the other has waited for: only slots of one size are safe then.
  const ScheduleOptions& o = schedule.options;
  const bool wraps =
      !std::ranges::all_of(o.units, &UnitRow::trains) || o.Any(&UnitRow::cast_frozen);
  if (wraps && streams.size() > 1) {
    int64_t largest = 0;
    for (const Take& take : takes) largest = std::max(largest, take.bytes);
    for (Take& take : takes) take.bytes = largest;
  }
  return Place(schedule, takes, schedule.gather_slots, wraps);
}

SlotPlaces PlacesOfGradients(const Schedule& schedule, const Layout& layout) {
  if (schedule.gradient_slots == 0) return {};
  return Place(schedule,
               TakesOf(schedule, layout, Resource::kGradient, &Layout::GradientBytes).first,
               schedule.gradient_slots, /*wraps=*/false);
}

}  // namespace fsdp
