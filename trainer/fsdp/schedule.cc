#include "trainer/fsdp/schedule.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/core/philox.h"
#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/host_limiter.h"

namespace fsdp {
namespace {

int Slots(int64_t asked, int units) { return static_cast<int>(std::min<int64_t>(asked, units)); }

int Units(const ScheduleOptions& o) {
  return 1 + *std::max_element(o.unit_of_segment.begin(), o.unit_of_segment.end());
}

// Walks the step in the order of the model's code and adds what surrounds each run.
class Builder {
 public:
  Builder(const ScheduleOptions& options, ActionList& list, HostLimiter& limiter)
      : o_(options),
        list_(list),
        limiter_(limiter),
        segments_(static_cast<int>(o_.unit_of_segment.size())),
        units_(Units(o_)),
        caching_(o_.buffers == FsdpOptions::Buffers::kCaching),
        sharded_(o_.shards > 1),
        reduced_(o_.shards * o_.replicas > 1),
        hybrid_(sharded_ && o_.replicas > 1),
        freed_(sharded_ && (o_.sharding_strategy == Strategy::kFullShard ||
                            o_.sharding_strategy == Strategy::kHybridShard)),
        slotted_gradients_(sharded_ && o_.gradient_accumulation == Accumulation::kSharded),
        slot_of_(units_, -1),
        resident_(units_, !sharded_),
        gradient_slot_of_(units_, -1) {
    for (const int unit : o_.cast_units) resident_[unit] = false;
    const int others = units_ - 1;
    if (freed_ && !caching_) {
      gather_slots_ = o_.limit_all_gathers == 0 ? others : Slots(o_.limit_all_gathers, others);
    }
    free_slots_ = gather_slots_;
    if (o_.mode == Mode::kTrain && slotted_gradients_ && !caching_) {
      gradient_slots_ = Slots(o_.reduce_buffers, others);
    }
    ListRuns();
  }

  int gather_slots() const { return gather_slots_; }
  int gradient_slots() const { return gradient_slots_; }

  void AddStep() {
    list_.Add({.kind = ActionKind::kBegin}, {}, {{Resource::kScalars, 0}});
    for (size_t r = 0; r < runs_.size(); ++r) AddRun(r);
    const bool train = o_.mode == Mode::kTrain;
    if (train) AddUpdate();
    if (!train && reduced_) AddScalarReduction();
    list_.Add({.kind = ActionKind::kEnd}, {{Resource::kScalars, 0}}, {});
  }

 private:
  struct Run {
    int micro_batch, segment, unit;
    Pass pass;
    bool backward() const { return pass != Pass::kForward; }
  };

  void ListRuns() {
    const auto add = [&](int m, int s, Pass pass) {
      runs_.push_back({m, s, o_.unit_of_segment[s], pass});
    };
    for (int m = 0; m < o_.micro_batches; ++m) {
      for (int s = 0; s < segments_; ++s) add(m, s, Pass::kForward);
      if (o_.mode != Mode::kTrain) continue;
      for (int s = segments_ - 1; s >= o_.backward_from; --s) {
        if (o_.recomputed[s]) add(m, s, Pass::kRecompute);
        add(m, s, Pass::kBackward);
      }
    }
  }

  Use Value(int unit) const {
    if (!sharded_) return {Resource::kComputeShard, unit};
    if (slot_of_[unit] >= 0) return {Resource::kSlot, slot_of_[unit]};
    return {Resource::kValue, unit};
  }
  Use Gradient(int unit) const {
    if (!sharded_) return {Resource::kGradientShard, unit};
    if (gradient_slot_of_[unit] >= 0) return {Resource::kGradientSlot, gradient_slot_of_[unit]};
    return {Resource::kGradient, unit};
  }

  // Whether the run reads the unit's parameters.
  bool Reads(const Run& run) const {
    return run.pass != Pass::kBackward || o_.not_read_backward.count(run.segment) == 0;
  }

  bool Trains(int unit) const { return o_.frozen_units.count(unit) == 0; }

  // Whether the unit takes a slot when gathered and gives it back after a pass.
  bool Freed(int unit) const { return freed_ && unit != 0; }

  // Issues the gather of `unit` unless it is there, for a run of this direction. False: no slot has
  // been given back yet.
  bool Gather(int unit, int micro_batch, bool backward, const std::vector<int>& pacing = {}) {
    if (resident_[unit]) return true;
    if (Freed(unit) && !caching_) {
      if (free_slots_ == 0) return false;
      --free_slots_;
      slot_of_[unit] = next_slot_++ % gather_slots_;
    }
    if (caching_ && sharded_) list_.Forget(Value(unit));
    const int host_wait = Freed(unit) ? AddHostWait(unit, micro_batch) : -1;
    resident_[unit] = true;
    std::vector<Use> reads;
    const bool secondary = backward && Freed(unit) && o_.secondary > 1;
    if (secondary) {
      reads.push_back({Resource::kSecondary, unit});
    } else if (Trains(unit) && o_.frozen_cast_units.count(unit) == 0) {  // Else: constant.
      reads.push_back({sharded_ ? Resource::kComputeShard : Resource::kMaster, unit});
    }
    const int gather = list_.Add({.kind = ActionKind::kGather,
                                  .stream = StreamId::kGather,
                                  .unit = unit,
                                  .micro_batch = micro_batch,
                                  .slot = slot_of_[unit],
                                  .secondary = secondary},
                                 reads, {Value(unit)}, pacing);
    if (host_wait >= 0) list_.Settle(host_wait, gather);
    return true;
  }

  // -1: none.
  int AddHostWait(int unit, int micro_batch) {
    const std::optional<int> free = limiter_.BeforeGather(slot_of_[unit]);
    if (!free) return -1;
    return list_.Add({.kind = ActionKind::kHostWait,
                      .stream = StreamId::kGather,
                      .unit = unit,
                      .micro_batch = micro_batch,
                      .slot = slot_of_[unit]},
                     {}, caching_ ? std::vector<Use>{} : std::vector<Use>{Value(unit)},
                     *free == HostLimiter::kLongAgo ? std::vector<int>{} : std::vector<int>{*free});
  }

  // Nothing in the step reads the unit's parameters after run r.
  bool IsLastRead(size_t r) const {
    return std::none_of(runs_.begin() + static_cast<std::ptrdiff_t>(r) + 1, runs_.end(),
                        [&](const Run& run) { return run.unit == runs_[r].unit && Reads(run); });
  }

  // The next run after r of another unit that takes part in prefetching, in the same pass direction
  // of the same micro-batch; -1 if there is none.
  int NextUnit(size_t r) const {
    for (size_t n = r + 1; n < runs_.size(); ++n) {
      if (runs_[n].micro_batch != runs_[r].micro_batch ||
          runs_[n].backward() != runs_[r].backward()) {
        return -1;
      }
      if (runs_[n].unit != 0 && runs_[n].unit != runs_[r].unit && Reads(runs_[n])) {
        return runs_[n].unit;
      }
    }
    return -1;
  }

  // Whether the unit of forward run r is read again on the way back, in its micro-batch.
  bool IsReadBackward(size_t r) const {
    for (size_t n = r + 1; n < runs_.size() && runs_[n].micro_batch == runs_[r].micro_batch; ++n) {
      if (runs_[n].unit == runs_[r].unit && runs_[n].backward() && Reads(runs_[n])) return true;
    }
    return false;
  }

  void PrefetchForBackward(size_t r, const std::vector<int>& pacing) {
    const int next = NextUnit(r);
    if (next >= 0) Gather(next, runs_[r].micro_batch, /*backward=*/true, pacing);
  }

  void AddRun(size_t r) {
    const Run& run = runs_[r];
    const int m = run.micro_batch, u = run.unit;
    const Use batch{Resource::kBatch, m % 2};
    if (run.pass == Pass::kForward && run.segment == 0) {
      list_.Add(
          {.kind = ActionKind::kLoad, .stream = StreamId::kData, .micro_batch = m, .slot = m % 2},
          {}, {batch});
    }
    if (Reads(run)) FSDP_CHECK(Gather(u, m, run.backward())) << "no slot for unit " << u;
    const bool pre = o_.backward_prefetch == BackwardPrefetch::kPre;
    if (run.backward() ? pre : o_.forward_prefetch) {
      const int next = NextUnit(r);
      if (next >= 0) Gather(next, m, run.backward());
    }

    const bool backward = run.pass == Pass::kBackward, gradient = backward && Trains(u);
    if (gradient) TakeGradient(u, m);
    std::vector<Use> reads{batch}, writes;  // Blocks look at positions.
    if (Reads(run)) reads.push_back(Value(u));
    const bool last = run.segment == segments_ - 1;
    if (gradient) writes.push_back(Gradient(u));
    if (last && (backward || o_.mode != Mode::kTrain)) writes.push_back({Resource::kScalars, 0});
    const int index = list_.Add(
        {.kind = ActionKind::kRun, .segment = run.segment, .pass = run.pass, .micro_batch = m},
        reads, writes);

    const bool ends =
        r + 1 == runs_.size() || runs_[r + 1].unit != u || runs_[r + 1].micro_batch != m;
    if (!ends) return;
    const bool kept = caching_ && sharded_ && !Freed(u);
    if (resident_[u] && (kept ? IsLastRead(r) : Freed(u))) {
      if (o_.secondary > 1 && !kept && !run.backward() && IsReadBackward(r)) {
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

  void TakeGradient(int u, int m) {
    if (!has_gradient_.insert(u).second) return;
    if (caching_ && sharded_) {
      list_.Forget(Gradient(u));
    } else if (slotted_gradients_ && u != 0) {
      gradient_slot_of_[u] = next_gradient_slot_++ % gradient_slots_;
    }
    list_.Add(
        {.kind = ActionKind::kClear, .unit = u, .micro_batch = m, .slot = gradient_slot_of_[u]}, {},
        {Gradient(u)});
  }

  // After backward run r, the last of its visit: reduces the unit's gradient if no later run of the
  // micro-batch adds to it and this is the micro-batch to reduce in. The reduction's last action,
  // or -1.
  int Reduce(size_t r) {
    const int u = runs_[r].unit, m = runs_[r].micro_batch;
    if (!Trains(u)) return -1;
    for (size_t n = r + 1; n < runs_.size() && runs_[n].micro_batch == m; ++n) {
      if (runs_[n].unit == u) return -1;
    }
    const bool final = m == o_.micro_batches - 1;
    if (final) reduced_units_.push_back(u);
    if (!reduced_ || (!slotted_gradients_ && !final)) return -1;
    const Use shard{Resource::kGradientShard, u}, staging{Resource::kStaging, 0};
    const bool staged = slotted_gradients_ && m > 0;
    if (caching_ && staged) list_.Forget(staging);
    const Use gradient = Gradient(u);
    std::vector<Use> reads, writes{staged ? staging : shard};
    if (gradient != writes[0]) reads.push_back(gradient);
    int index = list_.Add({.kind = ActionKind::kReduce,
                           .stream = StreamId::kReduce,
                           .unit = u,
                           .micro_batch = m,
                           .slot = gradient_slot_of_[u],
                           .staged = staged},
                          reads, writes);
    if (staged) {
      index = list_.Add({.kind = ActionKind::kAccumulate,
                         .stream = StreamId::kReduce,
                         .unit = u,
                         .micro_batch = m},
                        {staging}, {shard});
    }
    if (slotted_gradients_) has_gradient_.erase(u);  // The next micro-batch starts from zero.
    if (hybrid_ && final) {
      index = list_.Add({.kind = ActionKind::kAllReduce,
                         .stream = StreamId::kReplicate,
                         .unit = u,
                         .micro_batch = m},
                        {}, {shard});
    }
    return index;
  }

  void AddScalarReduction() {
    list_.Add({.kind = ActionKind::kReduceScalars, .stream = StreamId::kReduce}, {},
              {{Resource::kScalars, 0}});
  }

  // As the next forward reads them.
  std::vector<int> OrderOfUpdates() const {
    std::set<int> left(reduced_units_.begin(), reduced_units_.end());
    std::vector<int> order;
    for (const int u : o_.unit_of_segment) {
      if (left.erase(u) > 0) order.push_back(u);
    }
    return order;
  }

  void AddUpdate() {
    const Use scalars{Resource::kScalars, 0};
    for (const int u : reduced_units_) {
      list_.Add({.kind = ActionKind::kSumSquares, .unit = u}, {{Resource::kGradientShard, u}},
                {scalars});
    }
    if (reduced_) AddScalarReduction();
    list_.Add({.kind = ActionKind::kClip}, {}, {scalars});
    for (const int u : OrderOfUpdates()) {
      std::vector<Use> writes{{Resource::kMaster, u}};
      if (o_.cast_units.count(u) == 0) writes.push_back({Resource::kComputeShard, u});
      list_.Add({.kind = ActionKind::kOptimizer, .unit = u},
                {scalars, {Resource::kGradientShard, u}}, writes);
    }
  }

  const ScheduleOptions& o_;
  ActionList& list_;
  HostLimiter& limiter_;
  const int segments_, units_;
  const bool caching_;            // No slots.
  const bool sharded_;            // Parameters are gathered.
  const bool reduced_;            // There are peers to sum with.
  const bool hybrid_;             // Their shards, over replicas, too.
  const bool freed_;              // Units other than the root take slots in turn.
  const bool slotted_gradients_;  // So do their gradients.
  std::vector<Run> runs_;
  int gather_slots_ = 0, free_slots_ = 0, next_slot_ = 0;
  int gradient_slots_ = 0, next_gradient_slot_ = 0;
  std::vector<int> slot_of_;
  std::vector<bool> resident_;
  std::vector<int> gradient_slot_of_;
  std::set<int> has_gradient_;      // Units whose gradient holds what is not reduced yet.
  std::vector<int> reduced_units_;  // In order of their last reduction.
};

void Check(const ScheduleOptions& o) {
  const auto require = [](bool ok, const std::string& what) {
    if (!ok) throw std::invalid_argument("[MakeSchedule] " + what);
  };
  require(!o.unit_of_segment.empty(), "no segments");
  require(o.recomputed.size() == o.unit_of_segment.size(), "recomputed must have a bit a segment");
  require(o.shards >= 1 && o.replicas >= 1, "shards and replicas must be >= 1");
  require(o.shards == 1 || o.replicas == 1 || IsHybrid(o.sharding_strategy),
          "shards and replicas are of hybrid strategies");
  require(o.sharding_strategy != Strategy::kNoShard || o.shards == 1, "no_shard has one shard");
  require(o.shards == 1 || o.cast_units.empty(), "cast_units are of one shard");
  require(o.secondary >= 1 && o.shards % o.secondary == 0, "secondary must divide shards");
  require(o.backward_from >= 0 && o.backward_from < static_cast<int>(o.unit_of_segment.size()),
          "backward_from must be a segment");
  require(o.micro_batches >= 1, "micro_batches must be >= 1");
  require(o.limit_all_gathers >= 0, "limit_all_gathers must be >= 0");
  require(o.reduce_buffers >= 1, "reduce_buffers must be >= 1");
  require(o.buffers == FsdpOptions::Buffers::kSlots || o.limiter == FsdpOptions::Limiter::kHost,
          "the device limits gathers by slots: buffers caching need limiter host");
  require(o.communicators == 1 || o.communicators == 2, "communicators must be 1 or 2");
}

const char* Name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kBegin:
      return "begin";
    case ActionKind::kLoad:
      return "load";
    case ActionKind::kHostWait:
      return "wait";
    case ActionKind::kGather:
      return "gather";
    case ActionKind::kRun:
      return "run";
    case ActionKind::kKeep:
      return "keep";
    case ActionKind::kFree:
      return "free";
    case ActionKind::kClear:
      return "clear";
    case ActionKind::kReduce:
      return "reduce";
    case ActionKind::kAccumulate:
      return "accumulate";
    case ActionKind::kAllReduce:
      return "all_reduce";
    case ActionKind::kSumSquares:
      return "sum_squares";
    case ActionKind::kReduceScalars:
      return "reduce_scalars";
    case ActionKind::kClip:
      return "clip";
    case ActionKind::kOptimizer:
      return "optimizer";
    case ActionKind::kEnd:
      return "end";
  }
  return "?";
}

constexpr const char* kStreamNames[kNumStreams] = {"compute", "gather", "reduce", "data",
                                                   "replicate"};

}  // namespace

Schedule MakeSchedule(const ScheduleOptions& options) {
  Check(options);
  const int most = Slots(options.limit_all_gathers, Units(options) - 1);
  // Frees that are outstanding when a step begins: as many as when the step before began, once
  // there have been a few.
  constexpr int kFewSteps = 16;
  for (int outstanding = 0, steps = 0;; ++steps) {
    FSDP_CHECK_LE(steps, kFewSteps) << "frees pile up: " << outstanding;
    ActionList list(/*one_queue=*/options.communicators == 1);
    HostLimiter limiter(options, most, outstanding);
    if (options.mode == Mode::kTrain) {
      Builder(options, list, limiter).AddStep();
      if (outstanding != limiter.outstanding()) {
        outstanding = limiter.outstanding();
        continue;
      }
      list.NextStep();
    }
    Builder step(options, list, limiter);
    step.AddStep();
    return {options, step.gather_slots(), step.gradient_slots(), list.Take()};
  }
}

const char* Name(Pass pass) {
  return pass == Pass::kForward ? "forward" : pass == Pass::kRecompute ? "recompute" : "backward";
}

std::string ToString(const Action& a) {
  std::ostringstream out;
  const bool host = a.kind == ActionKind::kHostWait;
  out << (host ? "host" : kStreamNames[static_cast<int>(a.stream)]) << ": " << Name(a.kind);
  if (a.kind == ActionKind::kRun) out << " " << Name(a.pass) << " segment " << a.segment;
  if (a.unit >= 0) out << " unit " << a.unit;
  if (a.micro_batch >= 0) out << " micro-batch " << a.micro_batch;
  if (a.slot >= 0) out << " slot " << a.slot;
  if (a.secondary) out << " secondary";
  if (a.staged) out << " staged";
  for (const Wait& wait : a.waits) {
    out << (wait.pacing ? " paced by " : " after ") << wait.action
        << (wait.step_before ? " of the step before" : "");
  }
  return out.str();
}

std::string Schedule::ToString() const {
  std::ostringstream out;
  out << "gather slots " << gather_slots << ", gradient slots " << gradient_slots << "\n";
  for (size_t i = 0; i < actions.size(); ++i) {
    out << i << " " << fsdp::ToString(actions[i]) << "\n";
  }
  return out.str();
}

uint64_t Schedule::Hash() const { return HashBytes(ToString()); }

}  // namespace fsdp
