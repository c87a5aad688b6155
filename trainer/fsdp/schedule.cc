#include "trainer/fsdp/schedule.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/device_updates.h"
#include "trainer/fsdp/host_updates.h"
#include "trainer/fsdp/rate_limiter.h"
#include "trainer/fsdp/scheduled_runs.h"
#include "trainer/fsdp/table_actions.h"

namespace fsdp {
namespace {

// Walks the step in the order of the model's code and adds what surrounds each run.
class Builder {
 public:
  Builder(const ScheduleOptions& options, ActionList& list, RateLimiter& limiter)
      : o_(options),
        list_(list),
        limiter_(limiter),
        updates_(o_, list_),
        tables_(o_, list_),
        runs_(o_),
        segments_(static_cast<int>(o_.segments.size())),
        units_(static_cast<int>(o_.units.size())),
        caching_(o_.buffers == FsdpOptions::Buffers::kCaching),
        sharded_(o_.shards > 1),
        reduced_(o_.shards * o_.replicas > 1),
        hybrid_(sharded_ && o_.replicas > 1),
        offloads_(o_.mode == Mode::kTrain && o_.Any(&UnitRow::on_host)),
        freed_((sharded_ || o_.Any(&UnitRow::fetched)) &&
               (o_.sharding_strategy == Strategy::kFullShard ||
                o_.sharding_strategy == Strategy::kHybridShard)),
        slotted_gradients_((sharded_ || offloads_) &&
                           o_.gradient_accumulation == Accumulation::kSharded),
        slot_of_(units_, -1),
        resident_(units_, !sharded_),
        gradient_slot_of_(units_, -1) {
    for (int unit = 0; unit < units_; ++unit) {
      if (o_.units[unit].cast || o_.units[unit].fetched) resident_[unit] = false;
    }
    const int others = units_ - 1;
    if (freed_ && !caching_) {
      gather_slots_ = o_.limit_all_gathers == 0 ? others : Slots(o_.limit_all_gathers, others);
    }
    free_slots_ = gather_slots_;
    if (o_.mode == Mode::kTrain && slotted_gradients_ && !caching_) {
      gradient_slots_ = Slots(o_.reduce_buffers, others);
    }
    if (offloads_ && sharded_) shard_slots_ = Slots(o_.reduce_buffers, units_);
  }

  int gather_slots() const { return gather_slots_; }
  int gradient_slots() const { return gradient_slots_; }
  int shard_slots() const { return shard_slots_; }
  int update_slots() const { return updates_.update_slots(); }
  int spill_slots() const { return updates_.spill_slots(); }

  void AddStep() {
    list_.Add({.kind = ActionKind::kBegin, .writes = {{Resource::kScalars}}});
    tables_.Begin();
    if (o_.mode == Mode::kTrain) updates_.Begin();
    for (size_t r = 0; r < runs_.size(); ++r) AddRun(r);
    o_.mode == Mode::kTrain ? AddUpdate() : AddScalarReduction();
    list_.Add({.kind = ActionKind::kEnd, .reads = {{Resource::kScalars}}});
  }

 private:
  bool IsOnHost(int unit) const { return offloads_ && o_.units[unit].on_host; }
  bool IsFetched(int unit) const { return o_.units[unit].fetched; }
  // Besides its shards on the device, while it is in use: in a slot, its own, or taken for it.
  bool HasOwnValue(int unit) const { return sharded_ || IsFetched(unit); }
  bool HasOwnGradient(int unit) const { return sharded_ || IsOnHost(unit); }

  Use Value(int unit) const {
    if (!HasOwnValue(unit)) return {Resource::kComputeShard, unit};
    return {Resource::kValue, unit, slot_of_[unit]};
  }
  // A run's use of a unit's parameters. Where nothing is gathered or cast, frozen ones are read
  // where they lie, which no update writes.
  Use Read(int unit, const ScheduledRun& run) const {
    const bool in_place = !HasOwnValue(unit) && !o_.units[unit].cast;
    if (in_place && o_.segments[run.segment].frozen) return {Resource::kConstant, unit};
    return Value(unit);
  }
  Use Gradient(int unit) const {
    if (!HasOwnGradient(unit)) return {Resource::kGradientShard, unit};
    return {Resource::kGradient, unit, gradient_slot_of_[unit]};
  }
  // The shard that a gather, or a fetch, copies.
  Use Source(int unit) const {
    if (!Trains(unit) || o_.units[unit].cast_frozen) return {Resource::kConstant, unit};
    const bool copied = sharded_ || IsFetched(unit);
    return {copied ? Resource::kComputeShard : Resource::kMaster, unit};
  }

  bool Trains(int unit) const { return o_.units[unit].trains; }

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
    const bool secondary = backward && Freed(unit) && o_.secondary > 1;
    const bool fetched = IsFetched(unit) && !secondary;
    const StreamId first = fetched ? StreamId::kFetch : StreamId::kGather;
    const int host_wait = Freed(unit) ? AddHostWait(unit, micro_batch, first, {Value(unit)}) : -1;
    resident_[unit] = true;
    if (fetched) {
      const int fetch = Fetch(unit, micro_batch, pacing);
      if (host_wait >= 0) list_.Settle(host_wait, fetch);
      if (!sharded_) return true;
    }
    Uses uses{.writes = {Value(unit)}};
    if (!fetched) {
      uses.reads = {secondary ? Use{Resource::kSecondary, unit} : Source(unit)};
      if (HasOwnValue(unit)) uses.takes = uses.writes;
    }
    const int index =
        Add(ActionKind::kGather, StreamId::kGather, unit, micro_batch, std::move(uses), pacing);
    if (host_wait >= 0 && !fetched) list_.Settle(host_wait, index);
    return true;
  }

  // The first action of it.
  int Fetch(int unit, int micro_batch, const std::vector<int>& pacing) {
    const auto add = [&](const Use& from, bool first) {
      Uses uses{.reads = {from}, .writes = {Value(unit)}};
      if (first) uses.takes = uses.writes;
      return Add(ActionKind::kMove, StreamId::kFetch, unit, micro_batch, std::move(uses), pacing);
    };
    const auto parts = static_cast<int>(o_.units[unit].spilled.size());
    if (o_.mode == Mode::kTrain || parts == 0) {
      return add(Source(unit), /*first=*/true);
    }
    int first = -1;
    for (int part = 0; part < parts; ++part) {
      const int fetch = add(updates_.ReadSpilled(unit, part), part == 0);
      if (first < 0) first = fetch;
    }
    return first;
  }

  // Before what is about to be listed on `stream`, to write `memory`. -1: none.
  int AddHostWait(int unit, int micro_batch, StreamId stream, const std::vector<Use>& memory) {
    const std::optional<int> free = limiter_.BeforeGather(slot_of_[unit]);
    if (!free) return -1;
    std::vector<int> awaited;
    if (*free != RateLimiter::kLongAgo) awaited.push_back(*free);
    return Add(ActionKind::kHostWait, stream, unit, micro_batch,
               {.writes = caching_ ? std::vector<Use>{} : memory}, awaited);
  }

  void Prefetch(size_t r, const std::vector<int>& pacing) {
    const int next = runs_.NextUnit(r);
    if (next >= 0) Gather(next, runs_[r].micro_batch, runs_[r].backward(), pacing);
  }

  void AddRun(size_t r) {
    const ScheduledRun& run = runs_[r];
    const int m = run.micro_batch, u = run.unit;
    if (run.comes_back(o_)) FetchActivations(run.segment - 1, m);
    const Use batch{.what = Resource::kBatch, .slot = m % 2};
    if (run.pass == Pass::kForward && run.segment == 0) {
      Add(ActionKind::kLoad, StreamId::kData, /*unit=*/-1, m, {.writes = {batch}});
    }
    if (runs_.Reads(run)) FSDP_CHECK(Gather(u, m, run.backward())) << "no slot for unit " << u;
    const bool pre = o_.backward_prefetch == BackwardPrefetch::kPre;
    if (run.backward() ? pre : o_.forward_prefetch) Prefetch(r, {});

    const bool backward = run.pass == Pass::kBackward, gradient = backward && Trains(u);
    if (gradient) TakeGradient(u, m);
    if (gradient || run.segment == segments_ - 1) FetchGradientAhead(r);
    Action action{.kind = ActionKind::kRun,
                  .segment = run.segment,
                  .pass = run.pass,
                  .micro_batch = m,
                  .reads = {batch}};  // Blocks look at positions.
    if (runs_.Reads(run)) action.reads.push_back(Read(u, run));
    const bool of_root = u != 0 && runs_.Reads(run, 0);
    if (of_root) action.reads.push_back(Read(0, run));
    const bool last = run.segment == segments_ - 1;
    if (gradient) action.writes.push_back(Gradient(u));
    if (last && (backward || o_.mode != Mode::kTrain)) {
      action.writes.push_back({Resource::kScalars});
    }
    UseActivations(run, action);
    tables_.Before(run, action);
    const int index = list_.Add(std::move(action));
    AddBatchSums(run);
    tables_.Behind(run);
    if (run.pass == Pass::kForward) LeaveActivations(run.segment, m);
    const bool ends =
        r + 1 == runs_.size() || runs_[r + 1].unit != u || runs_[r + 1].micro_batch != m;
    if (!ends) return;
    LetGo(r, u);
    if (of_root || r + 1 == runs_.size()) LetGo(r, 0);
    if (!run.backward()) return;
    if (pre) Prefetch(r, {});
    if (o_.backward_prefetch == BackwardPrefetch::kPost) Prefetch(r, {index});
    std::vector<int> pacing{index};
    const int reduced = Reduce(r);
    if (reduced >= 0) pacing.push_back(reduced);
    if (o_.backward_prefetch == BackwardPrefetch::kNone) Prefetch(r, pacing);
  }

  // Sums over ranks of a run's batch norms (train.batch_norm: sync), done where the model's code
  // asks for them; the compute stream waits for each. The list fixes their number and their order
  // on the stream of reductions. A recompute takes forward's sums.
  void AddBatchSums(const ScheduledRun& run) {
    const bool none = run.pass == Pass::kRecompute;
    for (int i = 0; !none && i < o_.segments[run.segment].batch_sums; ++i) {
      list_.Add({.kind = ActionKind::kSumBatch,
                 .stream = StreamId::kReduce,
                 .segment = run.segment,
                 .pass = run.pass,
                 .micro_batch = run.micro_batch});
    }
  }

  // Behind run r, its visit's last: what of unit u nobody reads before it is gathered again.
  void LetGo(size_t r, int u) {
    const ScheduledRun& run = runs_[r];
    const int m = run.micro_batch;
    const bool kept = caching_ && HasOwnValue(u) && !Freed(u);
    if (!resident_[u] || !(kept ? runs_.IsLastUse(r, u) : Freed(u))) return;
    if (o_.secondary > 1 && !kept && !run.backward() && runs_.IsReadBackward(r)) {
      Add(ActionKind::kMove, StreamId::kCompute, u, m,
          {.reads = {Value(u)}, .writes = {{Resource::kSecondary, u}}});
    }
    Uses uses{.gives = {Value(u)}};
    if (o_.poison) uses.writes = uses.gives;
    const int free = Add(ActionKind::kFree, StreamId::kCompute, u, m, std::move(uses));
    if (!kept) limiter_.OnFree(slot_of_[u], free);
    resident_[u] = false;
    ++free_slots_;
  }

  // A block keeps its input, written by the run before it, and its own activations unless it
  // recomputes them.
  void UseActivations(const ScheduledRun& run, Action& action) const {
    const int s = run.segment;
    const Use own{Resource::kActivations, s}, next{Resource::kActivations, s + 1};
    if (run.backward()) {
      if (IsOffloaded(s)) action.reads.push_back(own);
      return;
    }
    if (IsOffloaded(s) && !o_.segments[s].recomputed) action.writes.push_back(own);
    if (IsOffloaded(s + 1)) action.writes.push_back(next);
  }

  // Before the first segment and behind the last nothing is.
  bool IsOffloaded(int segment) const {
    return segment >= 0 && segment < static_cast<int>(o_.segments.size()) &&
           o_.segments[segment].offloaded;
  }

  // Behind forward of `segment`, beside that of the next. Their memory, given back or taken, is the
  // compute stream's, whose uses of it the list does not know: waits for it are not found by uses.
  void LeaveActivations(int segment, int m) {
    if (IsOffloaded(segment - 1)) {
      list_.Add({.kind = ActionKind::kDrop, .segment = segment - 1, .micro_batch = m}, {left_});
    }
    if (!IsOffloaded(segment)) return;
    left_ = MoveActivations(StreamId::kLeave, segment, m, Resource::kActivations,
                            Resource::kHostActivations, {});
  }

  // Behind all that the compute stream has, runs and copies: either may give memory back to it.
  void FetchActivations(int segment, int m) {
    if (!IsOffloaded(segment)) return;
    MoveActivations(StreamId::kFetch, segment, m, Resource::kHostActivations,
                    Resource::kActivations, {list_.LastOn(StreamId::kCompute)});
  }

  int MoveActivations(StreamId stream, int segment, int m, Resource from, Resource to,
                      const std::vector<int>& pacing) {
    return list_.Add({.kind = ActionKind::kMove,
                      .stream = stream,
                      .segment = segment,
                      .micro_batch = m,
                      .reads = {{from, segment}},
                      .writes = {{to, segment}}},
                     pacing);
  }

  void TakeGradient(int u, int m) {
    if (!has_gradient_.insert(u).second) return;
    const bool comes = !sharded_ && IsOnHost(u) && m > 0;
    if (!caching_ && slotted_gradients_ && u != 0 && HasOwnGradient(u)) {
      gradient_slot_of_[u] = next_gradient_slot_++ % gradient_slots_;
    }
    const Use gradient = Gradient(u);
    if (comes) return FetchGradient(u, m, gradient);
    Uses uses{.writes = {gradient}};
    if (HasOwnGradient(u)) uses.takes = uses.writes;
    Add(ActionKind::kClear, StreamId::kCompute, u, m, std::move(uses));
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

  // The sum that earlier micro-batches have left on the host, to add to it.
  void FetchGradient(int u, int m, const Use& to) {
    Add(ActionKind::kMove, StreamId::kFetch, u, m,
        {.reads = {{Resource::kHostGradient, u}}, .writes = {to}, .takes = {to}});
  }

  // After backward run r: reduces the unit's gradient if no later run of the micro-batch adds to it
  // and this is the micro-batch to reduce in. Returns the reduction's last action, or -1.
  int Reduce(size_t r) {
    const int u = runs_[r].unit, m = runs_[r].micro_batch;
    if (!Trains(u)) return -1;
    if (!runs_.IsLastOfUnit(r)) return -1;
    const bool final = m == o_.micro_batches - 1;
    if (final) reduced_units_.push_back(u);
    if (sharded_ ? !slotted_gradients_ && !final : !IsOnHost(u) && !final) return -1;
    const Use shard = ReducedTo(u);
    int index = -1;
    if (sharded_) {
      index = ReduceScatter(u, m, shard);
    } else if (reduced_ && final) {
      index = Add(ActionKind::kReduce, StreamId::kReduce, u, m, {.writes = {shard}});
    }
    if (hybrid_ && final) {
      index = Add(ActionKind::kAllReduce, StreamId::kReplicate, u, m, {.writes = {shard}});
    }
    if (offloads_) Leave(u, m, shard, final);
    return index;
  }

  Use ReducedTo(int u) {
    if (!IsOnHost(u)) return {Resource::kGradientShard, u};
    if (!sharded_) return Gradient(u);
    return {Resource::kShard, u, next_shard_slot_++ % shard_slots_};
  }

  int ReduceScatter(int u, int m, const Use& shard) {
    const Use staging{Resource::kStaging};
    const bool staged = slotted_gradients_ && m > 0;
    if (staged && IsOnHost(u)) FetchGradient(u, m, shard);
    const Use gradient = o_.concat_gradients ? Join(u, m) : Gradient(u);
    Uses uses{.reads = {gradient}, .writes = {staged ? staging : shard}, .gives = {gradient}};
    if (staged || IsOnHost(u)) uses.takes = uses.writes;
    int index = Add(ActionKind::kReduce, StreamId::kReduce, u, m, std::move(uses));
    if (staged) {
      index = Add(ActionKind::kAccumulate, StreamId::kReduce, u, m,
                  {.reads = {staging}, .writes = {shard}, .gives = {staging}});
    }
    if (slotted_gradients_) has_gradient_.erase(u);  // The next micro-batch starts from zero.
    return index;
  }

  // Copies the unit's gradient into memory of its own, and gives back what backward added to.
  Use Join(int u, int m) {
    const Use joined{Resource::kJoinedGradient, u};
    Add(ActionKind::kMove, StreamId::kCompute, u, m,
        {.reads = {Gradient(u)}, .writes = {joined}, .takes = {joined}, .gives = {Gradient(u)}});
    return joined;
  }

  // A gradient that is whole is squared while it is there: by then nobody reads it on the device.
  void Leave(int u, int m, const Use& shard, bool final) {
    if (final) SumSquares(u, shard, StreamId::kLeave);
    // Where micro-batches are summed on the device, the last one's sum.
    if (!IsOnHost(u) || (!slotted_gradients_ && !final)) return;
    Add(ActionKind::kMove, StreamId::kLeave, u, m,
        {.reads = {shard}, .writes = {{Resource::kHostGradient, u}}, .gives = {shard}});
    if (!sharded_ && slotted_gradients_) has_gradient_.erase(u);
  }

  void SumSquares(int u, const Use& shard, StreamId stream) {
    Add(ActionKind::kSumSquares, stream, u, /*m=*/-1,
        {.reads = {shard}, .writes = {{Resource::kScalars}}});
  }

  void AddScalarReduction() {
    if (!reduced_) return;
    Add(ActionKind::kReduceScalars, StreamId::kReduce, -1, -1, {.writes = {{Resource::kScalars}}});
  }

  void AddUpdate() {
    const Use scalars{Resource::kScalars};
    for (const int u : reduced_units_) {
      if (offloads_) break;  // It has been done.
      SumSquares(u, {Resource::kGradientShard, u}, StreamId::kCompute);
    }
    tables_.BeforeNorm();
    AddScalarReduction();
    Action clip{.kind = ActionKind::kClip, .writes = {scalars}};
    if (offloads_) clip.writes.push_back({Resource::kFactors});
    list_.Add(std::move(clip));
    tables_.Update();
    const std::vector<int> order =
        OrderOfUpdates(o_, {reduced_units_.begin(), reduced_units_.end()});
    DeviceUpdates updates(o_, list_, updates_, order);
    if (o_.factored) updates.FactorMoments();
    for (const int u : order) updates.Update(u);
  }

  struct Uses {
    std::vector<Use> reads = {}, writes = {}, takes = {}, gives = {};
  };
  int Add(ActionKind kind, StreamId stream, int unit, int micro_batch, Uses uses,
          const std::vector<int>& pacing = {}) {
    return list_.Add({.kind = kind,
                      .stream = stream,
                      .unit = unit,
                      .micro_batch = micro_batch,
                      .reads = std::move(uses.reads),
                      .writes = std::move(uses.writes),
                      .takes = std::move(uses.takes),
                      .gives = std::move(uses.gives)},
                     pacing);
  }

  const ScheduleOptions& o_;
  ActionList& list_;
  RateLimiter& limiter_;
  HostUpdates updates_;
  TableActions tables_;
  const ScheduledRuns runs_;
  const int segments_, units_;
  const bool caching_;            // No slots.
  const bool sharded_;            // Parameters are gathered.
  const bool reduced_;            // There are peers to sum with.
  const bool hybrid_;             // Their shards, over replicas, too.
  const bool offloads_;           // The updates of some units.
  const bool freed_;              // Units other than the root take slots in turn.
  const bool slotted_gradients_;  // So do their gradients.
  int gather_slots_ = 0, free_slots_ = 0, next_slot_ = 0;
  int gradient_slots_ = 0, next_gradient_slot_ = 0;
  int left_ = -1;  // The action with which activations have left last.
  int shard_slots_ = 0, next_shard_slot_ = 0;
  std::vector<int> slot_of_;
  std::vector<bool> resident_;
  std::vector<int> gradient_slot_of_;
  std::set<int> has_gradient_;      // Units whose gradient holds what is not reduced yet.
  std::vector<int> reduced_units_;  // In order of their last reduction.
};

}  // namespace

Schedule MakeSchedule(const ScheduleOptions& options) {
  options.Check();
  const int most = Slots(options.limit_all_gathers, std::ssize(options.units) - 1);
  // Frees that are outstanding when a step begins: as many as when the step before began, once
  // there have been a few.
  constexpr int kFewSteps = 16;
  for (int outstanding = 0, steps = 0;; ++steps) {
    FSDP_CHECK_LE(steps, kFewSteps) << "frees pile up: " << outstanding;
    ActionList list(/*one_queue=*/options.communicators == 1,
                    options.buffers == FsdpOptions::Buffers::kCaching);
    RateLimiter limiter(options, most, outstanding);
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
