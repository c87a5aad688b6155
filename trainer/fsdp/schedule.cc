#include "trainer/fsdp/schedule.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/host_limiter.h"
#include "trainer/fsdp/host_updates.h"
#include "trainer/fsdp/schedule_check.h"
#include "trainer/fsdp/scheduled_runs.h"

namespace fsdp {
namespace {

int Slots(int64_t asked, int units) { return static_cast<int>(std::min<int64_t>(asked, units)); }

int Units(const ScheduleOptions& o) {
  return 1 + *std::max_element(o.unit_of_segment.begin(), o.unit_of_segment.end());
}

// Walks the step in the order of the model's code and adds what surrounds each run.
class Builder {
 public:
  // `leaving`: of gradients that leave for the host.
  Builder(const ScheduleOptions& options, ActionList& list, HostLimiter& limiter,
          HostLimiter& leaving)
      : o_(options),
        list_(list),
        limiter_(limiter),
        leaving_(leaving),
        updates_(o_, list_),
        runs_(o_),
        segments_(static_cast<int>(o_.unit_of_segment.size())),
        units_(Units(o_)),
        caching_(o_.buffers == FsdpOptions::Buffers::kCaching),
        sharded_(o_.shards > 1),
        reduced_(o_.shards * o_.replicas > 1),
        hybrid_(sharded_ && o_.replicas > 1),
        offloads_(o_.mode == Mode::kTrain && !o_.host_units.empty()),
        freed_((sharded_ || !o_.fetched_units.empty()) &&
               (o_.sharding_strategy == Strategy::kFullShard ||
                o_.sharding_strategy == Strategy::kHybridShard)),
        slotted_gradients_((sharded_ || offloads_) &&
                           o_.gradient_accumulation == Accumulation::kSharded),
        slot_of_(units_, -1),
        resident_(units_, !sharded_),
        gradient_slot_of_(units_, -1) {
    for (const int unit : o_.cast_units) resident_[unit] = false;
    for (const int unit : o_.fetched_units) resident_[unit] = false;
    const int others = units_ - 1;
    if (freed_ && !caching_) {
      gather_slots_ = o_.limit_all_gathers == 0 ? others : Slots(o_.limit_all_gathers, others);
    }
    free_slots_ = gather_slots_;
    if (o_.mode == Mode::kTrain && slotted_gradients_ && !caching_) {
      gradient_slots_ = Slots(o_.reduce_buffers, others);
    }
    if (offloads_ && sharded_ && !caching_) shard_slots_ = Slots(o_.reduce_buffers, units_);
  }

  int gather_slots() const { return gather_slots_; }
  int gradient_slots() const { return gradient_slots_; }
  int shard_slots() const { return shard_slots_; }
  int update_slots() const { return updates_.update_slots(); }
  int spill_slots() const { return updates_.spill_slots(); }

  void AddStep() {
    list_.Add({.kind = ActionKind::kBegin}, {}, {{Resource::kScalars, 0}});
    if (o_.mode == Mode::kTrain) updates_.Begin();
    for (size_t r = 0; r < runs_.size(); ++r) AddRun(r);
    const bool train = o_.mode == Mode::kTrain;
    if (train) AddUpdate();
    if (!train && reduced_) AddScalarReduction();
    list_.Add({.kind = ActionKind::kEnd}, {{Resource::kScalars, 0}}, {});
  }

 private:
  bool IsOnHost(int unit) const { return offloads_ && o_.host_units.count(unit) > 0; }
  bool IsFetched(int unit) const { return o_.fetched_units.count(unit) > 0; }
  // Besides its shards on the device, while it is in use: in a slot, its own, or taken for it.
  bool HasOwnValue(int unit) const { return sharded_ || IsFetched(unit); }
  bool HasOwnGradient(int unit) const { return sharded_ || IsOnHost(unit); }

  Use Value(int unit) const {
    if (!HasOwnValue(unit)) return {Resource::kComputeShard, unit};
    if (slot_of_[unit] >= 0) return {Resource::kSlot, slot_of_[unit]};
    return {Resource::kValue, unit};
  }
  Use Gradient(int unit) const {
    if (!HasOwnGradient(unit)) return {Resource::kGradientShard, unit};
    if (gradient_slot_of_[unit] >= 0) return {Resource::kGradientSlot, gradient_slot_of_[unit]};
    return {Resource::kGradient, unit};
  }

  bool Trains(int unit) const { return o_.frozen_units.count(unit) == 0; }

  // Whether the unit takes a slot when gathered and gives it back after a pass.
  bool Freed(int unit) const { return freed_ && unit != 0 && HasOwnValue(unit); }

  // Issues the gather of `unit` unless it is there, for a run of this direction. False: no slot has
  // been given back yet.
  bool Gather(int unit, int micro_batch, bool backward, const std::vector<int>& pacing = {}) {
    if (resident_[unit]) return true;
    if (Freed(unit) && !caching_) {
      if (free_slots_ == 0) return false;
      --free_slots_;
      slot_of_[unit] = next_slot_++ % gather_slots_;
    }
    if (caching_ && HasOwnValue(unit)) list_.Forget(Value(unit));
    const bool secondary = backward && Freed(unit) && o_.secondary > 1;
    const bool fetched = IsFetched(unit) && !secondary;
    const StreamId first = fetched ? StreamId::kFetch : StreamId::kGather;
    const int host_wait =
        Freed(unit) ? AddHostWait(limiter_, unit, micro_batch, first, {Value(unit)}) : -1;
    resident_[unit] = true;
    std::vector<Use> reads;
    if (secondary) {
      reads.push_back({Resource::kSecondary, unit});
    } else if (Trains(unit) && o_.frozen_cast_units.count(unit) == 0) {  // Else: constant.
      const bool copied = sharded_ || IsFetched(unit);
      reads.push_back({copied ? Resource::kComputeShard : Resource::kMaster, unit});
    }
    if (fetched) {
      const int fetch = Fetch(unit, micro_batch, reads, pacing);
      if (host_wait >= 0) list_.Settle(host_wait, fetch);
      if (!sharded_) return true;
      reads.clear();
    }
    const int gather = list_.Add({.kind = ActionKind::kGather,
                                  .stream = StreamId::kGather,
                                  .unit = unit,
                                  .micro_batch = micro_batch,
                                  .slot = slot_of_[unit],
                                  .secondary = secondary},
                                 reads, {Value(unit)}, pacing);
    if (host_wait >= 0 && !fetched) list_.Settle(host_wait, gather);
    return true;
  }

  // The first action of it.
  int Fetch(int unit, int micro_batch, const std::vector<Use>& reads,
            const std::vector<int>& pacing) {
    const auto add = [&](int part, int spill_slot, const std::vector<Use>& from) {
      return list_.Add({.kind = ActionKind::kFetch,
                        .stream = StreamId::kFetch,
                        .unit = unit,
                        .micro_batch = micro_batch,
                        .slot = slot_of_[unit],
                        .part = part,
                        .spill_slot = spill_slot},
                       from, {Value(unit)}, pacing);
    };
    const auto spilled = o_.spilled_units.find(unit);
    if (o_.mode == Mode::kTrain || spilled == o_.spilled_units.end()) return add(-1, -1, reads);
    int first = -1;
    for (int part = 0; part < std::ssize(spilled->second); ++part) {
      const int slot = updates_.ReadSpilled(unit, part);
      const int fetch = add(part, slot, {{Resource::kSpillSlot, slot}});
      if (first < 0) first = fetch;
    }
    return first;
  }

  // Before what is about to be listed on `stream`, to write `memory`. -1: none.
  int AddHostWait(HostLimiter& limiter, int unit, int micro_batch, StreamId stream,
                  const std::vector<Use>& memory) {
    const std::optional<int> free = limiter.BeforeGather(slot_of_[unit]);
    if (!free) return -1;
    return list_.Add({.kind = ActionKind::kHostWait,
                      .stream = stream,
                      .unit = unit,
                      .micro_batch = micro_batch,
                      .slot = slot_of_[unit]},
                     {}, caching_ ? std::vector<Use>{} : memory,
                     *free == HostLimiter::kLongAgo ? std::vector<int>{} : std::vector<int>{*free});
  }

  void PrefetchForBackward(size_t r, const std::vector<int>& pacing) {
    const int next = runs_.NextUnit(r);
    if (next >= 0) Gather(next, runs_[r].micro_batch, /*backward=*/true, pacing);
  }

  void AddRun(size_t r) {
    const ScheduledRun& run = runs_[r];
    const int m = run.micro_batch, u = run.unit;
    if (run.comes_back(o_)) FetchActivations(run.segment - 1, m);
    const Use batch{Resource::kBatch, m % 2};
    if (run.pass == Pass::kForward && run.segment == 0) {
      list_.Add(
          {.kind = ActionKind::kLoad, .stream = StreamId::kData, .micro_batch = m, .slot = m % 2},
          {}, {batch});
    }
    if (runs_.Reads(run)) FSDP_CHECK(Gather(u, m, run.backward())) << "no slot for unit " << u;
    const bool pre = o_.backward_prefetch == BackwardPrefetch::kPre;
    if (run.backward() ? pre : o_.forward_prefetch) {
      const int next = runs_.NextUnit(r);
      if (next >= 0) Gather(next, m, run.backward());
    }

    const bool backward = run.pass == Pass::kBackward, gradient = backward && Trains(u);
    if (gradient) TakeGradient(u, m);
    if (gradient || run.segment == segments_ - 1) FetchGradientAhead(r);
    std::vector<Use> reads{batch}, writes;  // Blocks look at positions.
    if (runs_.Reads(run)) reads.push_back(Value(u));
    const bool last = run.segment == segments_ - 1;
    if (gradient) writes.push_back(Gradient(u));
    if (last && (backward || o_.mode != Mode::kTrain)) writes.push_back({Resource::kScalars, 0});
    UseActivations(run, reads, writes);
    const int index = list_.Add(
        {.kind = ActionKind::kRun, .segment = run.segment, .pass = run.pass, .micro_batch = m},
        reads, writes);

    last_run_ = index;
    if (run.pass == Pass::kForward) LeaveActivations(run.segment, m);
    const bool ends =
        r + 1 == runs_.size() || runs_[r + 1].unit != u || runs_[r + 1].micro_batch != m;
    if (!ends) return;
    const bool kept = caching_ && HasOwnValue(u) && !Freed(u);
    if (resident_[u] && (kept ? runs_.IsLastRead(r) : Freed(u))) {
      if (o_.secondary > 1 && !kept && !run.backward() && runs_.IsReadBackward(r)) {
        list_.Add({.kind = ActionKind::kKeep, .unit = u, .micro_batch = m, .slot = slot_of_[u]},
                  {Value(u)}, {{Resource::kSecondary, u}});
      }
      const int free =
          list_.Add({.kind = ActionKind::kFree, .unit = u, .micro_batch = m, .slot = slot_of_[u]},
                    {}, o_.poison ? std::vector<Use>{Value(u)} : std::vector<Use>{});
      if (!kept) limiter_.OnFree(slot_of_[u], free);
      resident_[u] = false;
      ++free_slots_;
    }
    if (!run.backward()) return;
    if (pre) PrefetchForBackward(r, {});
    if (o_.backward_prefetch == BackwardPrefetch::kPost) PrefetchForBackward(r, {index});
    std::vector<int> pacing{index};
    const int reduced = Reduce(r);
    if (reduced >= 0) pacing.push_back(reduced);
    if (o_.backward_prefetch == BackwardPrefetch::kNone) PrefetchForBackward(r, pacing);
  }

  // A block keeps what it begins with, which the run before makes, and what it makes itself, unless
  // it does that again.
  void UseActivations(const ScheduledRun& run, std::vector<Use>& reads,
                      std::vector<Use>& writes) const {
    const int s = run.segment;
    const Use own{Resource::kActivations, s}, next{Resource::kActivations, s + 1};
    if (run.backward()) {
      if (IsOffloaded(s)) reads.push_back(own);
      return;
    }
    if (IsOffloaded(s) && !o_.recomputed[s]) writes.push_back(own);
    if (IsOffloaded(s + 1)) writes.push_back(next);
  }

  bool IsOffloaded(int segment) const { return o_.offloaded_segments.count(segment) > 0; }

  // Behind forward of `segment`, beside that of the next. Their memory, given back or taken, is the
  // compute stream's, whose uses of it the list does not know: waits for it are not found by uses.
  void LeaveActivations(int segment, int m) {
    if (IsOffloaded(segment - 1)) {
      list_.Add({.kind = ActionKind::kDropActivations, .segment = segment - 1, .micro_batch = m},
                {}, {}, {left_});
    }
    if (!IsOffloaded(segment)) return;
    left_ = list_.Add({.kind = ActionKind::kLeaveActivations,
                       .stream = StreamId::kLeave,
                       .segment = segment,
                       .micro_batch = m},
                      {{Resource::kActivations, segment}}, {{Resource::kHostActivations, segment}});
  }

  // Behind all that the compute stream has.
  void FetchActivations(int segment, int m) {
    if (!IsOffloaded(segment)) return;
    list_.Add({.kind = ActionKind::kFetchActivations,
               .stream = StreamId::kFetch,
               .segment = segment,
               .micro_batch = m},
              {{Resource::kHostActivations, segment}}, {{Resource::kActivations, segment}},
              {last_run_});
  }

  void TakeGradient(int u, int m) {
    if (!has_gradient_.insert(u).second) return;
    const bool comes = !sharded_ && IsOnHost(u) && m > 0;
    if (caching_ && HasOwnGradient(u)) {
      list_.Forget(Gradient(u));
      const StreamId first = comes ? StreamId::kFetch : StreamId::kCompute;
      if (!sharded_) AddHostWait(leaving_, u, m, first, {});
    } else if (slotted_gradients_ && u != 0 && HasOwnGradient(u)) {
      gradient_slot_of_[u] = next_gradient_slot_++ % gradient_slots_;
    }
    if (comes) return FetchGradient(u, m, Gradient(u));
    list_.Add(
        {.kind = ActionKind::kClear, .unit = u, .micro_batch = m, .slot = gradient_slot_of_[u]}, {},
        {Gradient(u)});
  }

  // Beside run r what the next unit's gradient is added to, where that comes from the host as it
  // is, and a slot is left for it.
  void FetchGradientAhead(size_t r) {
    const int next = runs_.NextGradient(r), m = runs_[r].micro_batch;
    if (next < 0 || m == 0 || sharded_ || !IsOnHost(next)) return;
    const bool slot = slotted_gradients_ && next != 0;
    if (slot && gradient_slots_ == 1 && runs_[r].backward()) return;
    TakeGradient(next, m);
  }

  // What the micro-batches before have left for the host, to add to it.
  void FetchGradient(int u, int m, const Use& to, int shard_slot = -1) {
    list_.Add({.kind = ActionKind::kFetchGradient,
               .stream = StreamId::kFetch,
               .unit = u,
               .micro_batch = m,
               .slot = shard_slot < 0 ? gradient_slot_of_[u] : -1,
               .shard_slot = shard_slot},
              {{Resource::kHostGradient, u}}, {to});
  }

  // After backward run r, the last of its visit: reduces the unit's gradient if no later run of the
  // micro-batch adds to it and this is the micro-batch to reduce in. The reduction's last action,
  // or -1.
  int Reduce(size_t r) {
    const int u = runs_[r].unit, m = runs_[r].micro_batch;
    if (!Trains(u)) return -1;
    if (!runs_.IsLastOfUnit(r)) return -1;
    const bool final = m == o_.micro_batches - 1;
    if (final) reduced_units_.push_back(u);
    if (sharded_ ? !slotted_gradients_ && !final : !IsOnHost(u) && !final) return -1;
    Use shard{Resource::kGradientShard, u};
    int shard_slot = -1, index = -1;
    if (IsOnHost(u) && sharded_ && caching_) {
      shard = {Resource::kShard, u};
      list_.Forget(shard);
    } else if (IsOnHost(u) && sharded_) {
      shard_slot = next_shard_slot_++ % shard_slots_;
      shard = {Resource::kShardSlot, shard_slot};
    } else if (IsOnHost(u)) {
      shard = Gradient(u);
    }
    if (sharded_) {
      index = ReduceScatter(u, m, shard, shard_slot);
    } else if (reduced_ && final) {
      index = list_.Add({.kind = ActionKind::kReduce,
                         .stream = StreamId::kReduce,
                         .unit = u,
                         .micro_batch = m,
                         .slot = gradient_slot_of_[u]},
                        {}, {shard});
    }
    if (hybrid_ && final) {
      index = list_.Add({.kind = ActionKind::kAllReduce,
                         .stream = StreamId::kReplicate,
                         .unit = u,
                         .micro_batch = m,
                         .shard_slot = shard_slot},
                        {}, {shard});
    }
    if (offloads_) Leave(u, m, shard, shard_slot, final);
    return index;
  }

  int ReduceScatter(int u, int m, const Use& shard, int shard_slot) {
    const Use staging{Resource::kStaging, 0};
    const bool staged = slotted_gradients_ && m > 0;
    if (staged && IsOnHost(u)) FetchGradient(u, m, shard, shard_slot);
    if (caching_ && staged) list_.Forget(staging);
    int index = list_.Add({.kind = ActionKind::kReduce,
                           .stream = StreamId::kReduce,
                           .unit = u,
                           .micro_batch = m,
                           .slot = gradient_slot_of_[u],
                           .shard_slot = shard_slot,
                           .staged = staged},
                          {Gradient(u)}, {staged ? staging : shard});
    if (staged) {
      index = list_.Add({.kind = ActionKind::kAccumulate,
                         .stream = StreamId::kReduce,
                         .unit = u,
                         .micro_batch = m,
                         .shard_slot = shard_slot},
                        {staging}, {shard});
    }
    if (slotted_gradients_) has_gradient_.erase(u);  // The next micro-batch starts from zero.
    return index;
  }

  // A gradient that is whole is squared while it is there: by then nobody reads it on the device.
  void Leave(int u, int m, const Use& shard, int shard_slot, bool final) {
    const int slot = IsOnHost(u) && !sharded_ ? gradient_slot_of_[u] : -1;
    if (final) {
      list_.Add({.kind = ActionKind::kSumSquares,
                 .stream = StreamId::kLeave,
                 .unit = u,
                 .slot = slot,
                 .shard_slot = shard_slot},
                {shard}, {{Resource::kScalars, 0}});
    }
    // Where micro-batches are summed on the device, the last one's sum.
    if (!IsOnHost(u) || (!slotted_gradients_ && !final)) return;
    const int left = list_.Add({.kind = ActionKind::kLeave,
                                .stream = StreamId::kLeave,
                                .unit = u,
                                .micro_batch = m,
                                .slot = slot,
                                .shard_slot = shard_slot},
                               {shard}, {{Resource::kHostGradient, u}});
    if (sharded_) return;
    if (caching_) leaving_.OnFree(/*slot=*/-1, left);
    if (slotted_gradients_) has_gradient_.erase(u);
  }

  void AddScalarReduction() {
    list_.Add({.kind = ActionKind::kReduceScalars, .stream = StreamId::kReduce}, {},
              {{Resource::kScalars, 0}});
  }

  void AddUpdate() {
    const Use scalars{Resource::kScalars, 0}, factors{Resource::kFactors, 0};
    for (const int u : reduced_units_) {
      if (offloads_) break;  // It has been done.
      list_.Add({.kind = ActionKind::kSumSquares, .unit = u}, {{Resource::kGradientShard, u}},
                {scalars});
    }
    if (reduced_) AddScalarReduction();
    list_.Add({.kind = ActionKind::kClip}, {},
              offloads_ ? std::vector<Use>{scalars, factors} : std::vector<Use>{scalars});
    for (const int u : OrderOfUpdates(o_, {reduced_units_.begin(), reduced_units_.end()})) {
      if (IsOnHost(u)) {
        updates_.Update(u);
        continue;
      }
      std::vector<Use> writes{{Resource::kMaster, u}};
      if (o_.cast_units.count(u) == 0) writes.push_back({Resource::kComputeShard, u});
      list_.Add({.kind = ActionKind::kOptimizer, .unit = u},
                {scalars, {Resource::kGradientShard, u}}, writes);
    }
  }

  const ScheduleOptions& o_;
  ActionList& list_;
  HostLimiter &limiter_, &leaving_;
  HostUpdates updates_;
  const ScheduledRuns runs_;
  const int segments_, units_;
  const bool caching_;            // No slots.
  const bool sharded_;            // Parameters are gathered.
  const bool reduced_;            // There are peers to sum with.
  const bool hybrid_;             // Their shards, over replicas, too.
  const bool offloads_;           // Of some units the updates.
  const bool freed_;              // Units other than the root take slots in turn.
  const bool slotted_gradients_;  // So do their gradients.
  int gather_slots_ = 0, free_slots_ = 0, next_slot_ = 0;
  int gradient_slots_ = 0, next_gradient_slot_ = 0;
  int last_run_ = -1, left_ = -1;  // The actions; of activations.
  int shard_slots_ = 0, next_shard_slot_ = 0;
  std::vector<int> slot_of_;
  std::vector<bool> resident_;
  std::vector<int> gradient_slot_of_;
  std::set<int> has_gradient_;      // Units whose gradient holds what is not reduced yet.
  std::vector<int> reduced_units_;  // In order of their last reduction.
};

}  // namespace

Schedule MakeSchedule(const ScheduleOptions& options) {
  CheckScheduleOptions(options);
  const int most = Slots(options.limit_all_gathers, Units(options) - 1);
  // Frees that are outstanding when a step begins: as many as when the step before began, once
  // there have been a few.
  constexpr int kFewSteps = 16;
  for (int gathers = 0, gradients = 0, steps = 0;; ++steps) {
    FSDP_CHECK_LE(steps, kFewSteps) << "frees pile up: " << gathers << ", " << gradients;
    ActionList list(/*one_queue=*/options.communicators == 1);
    HostLimiter limiter(options, most, gathers), leaving(options, most, gradients);
    if (options.mode == Mode::kTrain) {
      Builder(options, list, limiter, leaving).AddStep();
      if (gathers != limiter.outstanding() || gradients != leaving.outstanding()) {
        gathers = limiter.outstanding();
        gradients = leaving.outstanding();
        continue;
      }
      list.NextStep();
    }
    Builder step(options, list, limiter, leaving);
    step.AddStep();
    return {options,
            step.gather_slots(),
            step.gradient_slots(),
            step.shard_slots(),
            step.update_slots(),
            step.spill_slots(),
            list.Take()};
  }
}

}  // namespace fsdp
