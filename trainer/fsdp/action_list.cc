#include "trainer/fsdp/action_list.h"

#include <algorithm>

namespace fsdp {

int ActionList::Add(Action action, const std::vector<Use>& reads, const std::vector<Use>& writes,
                    const std::vector<int>& pacing) {
  if (one_queue_ && action.stream == StreamId::kReduce) action.stream = StreamId::kGather;
  const int index = static_cast<int>(actions_.size());
  const int stream = static_cast<int>(action.stream);

  std::vector<int> needed;
  for (const Use& use : reads) Touch(use, index, action.stream, /*write=*/false, needed);
  for (const Use& use : writes) Touch(use, index, action.stream, /*write=*/true, needed);

  Clock& now = streams_[stream];
  for (const Wait& wait : Minimal(now, needed, pacing)) {
    Join(now, clocks_[wait.action]);
    actions_[wait.action].signals = true;
    action.waits.push_back(wait);
  }
  now[stream] = index + 1;
  clocks_.push_back(now);
  actions_.push_back(std::move(action));
  return index;
}

void ActionList::Join(Clock& into, const Clock& from) {
  for (int s = 0; s < kNumStreams; ++s) into[s] = std::max(into[s], from[s]);
}

bool ActionList::Knows(const Clock& clock, int action) const {
  return clock[static_cast<int>(actions_[action].stream)] > action;
}

// Whether `stream` knows all that the steps before did with a resource. In one queue the scalars
// were reduced last, after every run; only the optimizer came later.
bool ActionList::KnewBefore(Resource resource, StreamId stream) const {
  return one_queue_ && stream == StreamId::kGather &&
         (resource == Resource::kValue || resource == Resource::kSlot);
}

void ActionList::Touch(const Use& use, int index, StreamId stream, bool write,
                       std::vector<int>& needed) {
  const auto [it, fresh] = users_.try_emplace(use);
  Users& users = it->second;
  if (index > 0 && !(fresh && KnewBefore(use.first, stream))) needed.push_back(users.write);
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
