#include "trainer/fsdp/action_list.h"

#include <algorithm>
#include <iterator>

namespace fsdp {

int ActionList::Add(Action action, const std::vector<int>& pacing) {
  if (one_queue_ && action.stream == StreamId::kReduce) action.stream = StreamId::kGather;
  const int index = static_cast<int>(actions_.size());
  const int lane = LaneOf(action);

  if (caching_) {  // Its uses so far order nothing.
    for (const Use& use : action.takes) users_.erase(KeyOf(use));
  }
  std::vector<int> needed;
  for (const Use& use : action.reads) Touch(use, index, /*write=*/false, needed);
  for (const Use& use : action.writes) Touch(use, index, /*write=*/true, needed);

  Clock& now = streams_[lane];
  Join(now, streams_[kHost]);
  if (lane == kHost) {
    needed_ = needed;
    held_ = now;
    Join(held_, streams_[static_cast<int>(action.stream)]);
  }
  for (const Wait& wait : Minimal(now, needed, pacing)) {
    Join(now, clocks_[wait.action]);
    action.waits.push_back(wait);
  }
  now[lane] = index + 1;
  clocks_.push_back(now);
  actions_.push_back(std::move(action));
  return index;
}

void ActionList::Settle(int wait, int held) {
  Clock known = held_;
  for (const Wait& own : actions_[held].waits) Join(known, clocks_[own.action]);
  const bool ordered =
      std::all_of(needed_.begin(), needed_.end(), [&](int action) { return Knows(known, action); });
  for (Wait& w : actions_[wait].waits) w.pacing |= ordered;
}

void ActionList::NextStep() { begin_ = static_cast<int>(actions_.size()); }

std::vector<Action> ActionList::Take() {
  std::vector<Action> step(std::make_move_iterator(actions_.begin() + begin_),
                           std::make_move_iterator(actions_.end()));
  for (Action& action : step) {
    for (Wait& wait : action.waits) {
      wait.step_before = wait.action < begin_;
      if (!wait.step_before) wait.action -= begin_;
      step[wait.action].signals = true;
    }
  }
  return step;
}

ActionList::Key ActionList::KeyOf(const Use& use) {
  return use.slot >= 0 ? Key(use.what, true, use.slot, -1) : Key(use.what, false, use.of, use.part);
}

int ActionList::LaneOf(const Action& action) {
  return action.kind == ActionKind::kHostWait ? kHost : static_cast<int>(action.stream);
}

void ActionList::Join(Clock& into, const Clock& from) {
  for (size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], from[s]);
}

bool ActionList::Knows(const Clock& clock, int action) const {
  return clock[LaneOf(actions_[action])] > action;
}

void ActionList::Touch(const Use& use, int index, bool write, std::vector<int>& needed) {
  Users& users = users_[KeyOf(use)];
  if (users.write >= 0) needed.push_back(users.write);
  if (write) {
    needed.insert(needed.end(), users.reads.begin(), users.reads.end());
    users = {index, {}};
    needed.erase(std::remove(needed.begin(), needed.end(), index), needed.end());
  } else {
    users.reads.push_back(index);
  }
}

// The fewest waits after which all of `needed` and `pacing` is known to a stream that knows
// `known`. Descending order finds them: what an earlier action knows, a later one may know too,
// never the other way round.
std::vector<Wait> ActionList::Minimal(const Clock& known, const std::vector<int>& needed,
                                      const std::vector<int>& pacing) const {
  std::vector<int> candidates = needed;
  candidates.insert(candidates.end(), pacing.begin(), pacing.end());
  std::sort(candidates.rbegin(), candidates.rend());
  std::vector<Wait> waits;
  Clock clock = known;
  for (const int action : candidates) {
    if (Knows(clock, action)) continue;
    Join(clock, clocks_[action]);
    waits.push_back({action});
  }
  for (Wait& wait : waits) {
    Clock without = known;
    for (const Wait& other : waits) {
      if (other.action != wait.action) Join(without, clocks_[other.action]);
    }
    wait.pacing = std::all_of(needed.begin(), needed.end(),
                              [&](int action) { return Knows(without, action); });
  }
  return waits;
}

}  // namespace fsdp
