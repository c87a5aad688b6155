#include "trainer/fsdp/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/testing/block_schedule.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

bool Is(const Action& action, const std::string& name) { return NameOf(action) == name; }

int Count(const Schedule& s, const std::string& name) {
  return static_cast<int>(std::count_if(s.actions.begin(), s.actions.end(),
                                        [&](const Action& a) { return Is(a, name); }));
}

int Count(const Schedule& s, ActionKind kind) {
  return static_cast<int>(std::count_if(s.actions.begin(), s.actions.end(),
                                        [&](const Action& a) { return a.kind == kind; }));
}

int Find(const Schedule& s, const std::function<bool(const Action&)>& is, int from = 0) {
  const auto it = std::find_if(s.actions.begin() + from, s.actions.end(), is);
  return it == s.actions.end() ? -1 : static_cast<int>(it - s.actions.begin());
}

int FindRun(const Schedule& s, int segment, Pass pass, int m = 0) {
  return Find(s, [&](const Action& a) {
    return a.kind == ActionKind::kRun && a.segment == segment && a.pass == pass &&
           a.micro_batch == m;
  });
}

// The gather of `unit` for the backward pass: the last one.
int FindBackwardGather(const Schedule& s, int unit) {
  int last = -1;
  for (int i = 0; i < static_cast<int>(s.actions.size()); ++i) {
    if (s.actions[i].kind == ActionKind::kGather && s.actions[i].unit == unit) last = i;
  }
  return last;
}

// Start and end of each action of the last of `steps` steps when streams run in parallel and every
// wait is kept, and when all of it is done.
struct Priced {
  std::vector<double> begin, end;
  double total = 0;
};
struct Prices {
  double forward = 1, gather = 0, update = 0;
};
Priced Price(const Schedule& s, const Prices& prices, int steps = 1) {
  Priced priced;
  double tail[kNumStreams] = {};
  for (int step = 0; step < steps; ++step) {
    const std::vector<double> before = std::exchange(priced, {}).end;
    for (const Action& a : s.actions) {
      double duration = 0;
      if (a.kind == ActionKind::kRun)
        duration = prices.forward * (a.pass == Pass::kBackward ? 2 : 1);
      if (a.kind == ActionKind::kGather || a.kind == ActionKind::kReduce) duration = prices.gather;
      if (a.kind == ActionKind::kOptimizer) duration = prices.update;
      double& at = tail[static_cast<int>(a.stream)];
      for (const Wait& wait : a.waits) {
        if (!wait.step_before) at = std::max(at, priced.end[wait.action]);
        if (wait.step_before && step > 0) at = std::max(at, before[wait.action]);
      }
      priced.begin.push_back(at);
      at += duration;
      priced.end.push_back(at);
      priced.total = std::max(priced.total, at);
    }
  }
  return priced;
}

TEST(Schedule, FullShardGathersTwiceAndReducesOnce) {
  const Schedule s = MakeSchedule(OfBlocks(5, 4));
  EXPECT_EQ(Count(s, ActionKind::kGather), 1 + 2 * 5);  // The root once: it is kept.
  EXPECT_EQ(Count(s, ActionKind::kReduce), 6);
  EXPECT_EQ(Count(s, ActionKind::kFree), 10);
  EXPECT_EQ(Count(s, ActionKind::kOptimizer), 6);
  EXPECT_EQ(s.gather_slots, 2);
}

TEST(Schedule, ShardGradOpGathersOnceAStep) {
  ScheduleOptions o = OfBlocks(5, 4);
  o.sharding_strategy = Strategy::kShardGradOp;
  o.micro_batches = 3;
  const Schedule s = MakeSchedule(o);
  EXPECT_EQ(Count(s, ActionKind::kGather), 6);
  EXPECT_EQ(Count(s, ActionKind::kFree), 0);
  EXPECT_EQ(Count(s, ActionKind::kReduce), 18);  // Sharded accumulation: each micro-batch.
  o.sharding_strategy = Strategy::kFullShard;
  EXPECT_EQ(Count(MakeSchedule(o), ActionKind::kGather), 1 + 3 * 10);
}

TEST(Schedule, UnshardedAccumulationReducesOnce) {
  ScheduleOptions o = OfBlocks(3, 2);
  o.micro_batches = 4;
  o.gradient_accumulation = Accumulation::kUnsharded;
  const Schedule s = MakeSchedule(o);
  EXPECT_EQ(Count(s, ActionKind::kReduce), 4);
  EXPECT_EQ(Count(s, ActionKind::kClear), 4);
  EXPECT_EQ(s.gradient_slots, 0);
}

TEST(Schedule, NoShardNeverGathersAndAllReducesOnce) {
  ScheduleOptions o = OfBlocks(3, 1);
  o.sharding_strategy = Strategy::kNoShard;
  o.replicas = 4;
  o.micro_batches = 2;
  const Schedule s = MakeSchedule(o);
  EXPECT_EQ(Count(s, ActionKind::kGather), 0);
  EXPECT_EQ(Count(s, ActionKind::kReduce), 4);
  EXPECT_EQ(Count(s, ActionKind::kReduceScalars), 1);
}

TEST(Schedule, OneRankTalksToNobody) {
  const Schedule s = MakeSchedule(OfBlocks(3, 1));
  EXPECT_EQ(Count(s, ActionKind::kGather) + Count(s, ActionKind::kReduce) +
                Count(s, ActionKind::kReduceScalars),
            0);
}

// Behind the run that asks for them, on the stream of reductions; a recompute asks for none.
TEST(Schedule, BatchSumsFollowTheirRuns) {
  for (const int communicators : {1, 2}) {
    ScheduleOptions o = OfBlocks(3, 4);
    o.micro_batches = 2;
    o.communicators = communicators;
    o.segments[2].recomputed = true;
    const uint64_t without = MakeSchedule(o).Hash();
    o.segments[2].batch_sums = 3;
    const Schedule s = MakeSchedule(o);
    EXPECT_NE(s.Hash(), without);
    EXPECT_EQ(Count(s, ActionKind::kSumBatch), 2 * 2 * 3);
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const int run = FindRun(s, 2, pass, 1);
      for (int i = run + 1; i <= run + 3; ++i) {
        const Action& sum = s.actions[i];
        EXPECT_EQ(sum.kind, ActionKind::kSumBatch);
        EXPECT_EQ(sum.segment, 2);
        EXPECT_EQ(sum.pass, pass);
        EXPECT_EQ(sum.micro_batch, 1);
        EXPECT_EQ(sum.stream, communicators == 1 ? StreamId::kGather : StreamId::kReduce);
        EXPECT_EQ(sum.group(), Group::kWorld);
      }
    }
    EXPECT_NE(s.actions[FindRun(s, 2, Pass::kRecompute) + 1].kind, ActionKind::kSumBatch);
  }
}

TEST(Schedule, PreLetsTheNextGatherStartWhileAUnitComputes) {
  const int blocks = 8;
  for (const BackwardPrefetch prefetch :
       {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
    for (const int communicators : {1, 2}) {
      ScheduleOptions o = OfBlocks(blocks, 4);
      o.backward_prefetch = prefetch;
      o.communicators = communicators;
      const Schedule s = MakeSchedule(o);
      const Priced priced = Price(s, {.gather = 0.8});
      int early = 0, before_reduce = 0;
      for (int i = 2; i <= blocks; ++i) {
        const int run = FindRun(s, i, Pass::kBackward), gather = FindBackwardGather(s, i - 1);
        const int reduce =
            Find(s, [&](const Action& a) { return a.kind == ActionKind::kReduce && a.unit == i; });
        early += priced.begin[gather] < priced.end[run];
        before_reduce += priced.begin[gather] < priced.end[reduce];
      }
      EXPECT_EQ(early, prefetch == BackwardPrefetch::kPre ? blocks - 1 : 0);
      EXPECT_EQ(before_reduce, prefetch == BackwardPrefetch::kNone ? 0 : blocks - 1);
    }
  }
}

TEST(Schedule, PrefetchIsWorthWhatTheTimelineSays) {
  ScheduleOptions o = OfBlocks(12, 4);
  const double pre = Price(MakeSchedule(o), {.gather = 0.8}).total;
  o.backward_prefetch = BackwardPrefetch::kPost;
  const double post = Price(MakeSchedule(o), {.gather = 0.8}).total;
  o.backward_prefetch = BackwardPrefetch::kNone;
  const double none = Price(MakeSchedule(o), {.gather = 0.8}).total;
  EXPECT_LT(pre, post);
  EXPECT_LT(post, none);
}

TEST(Schedule, LimitBoundsHowFarGathersRunAhead) {
  for (const int limit : {1, 2, 3, 0}) {
    ScheduleOptions o = OfBlocks(6, 2);
    o.limit_all_gathers = limit;
    const Schedule s = MakeSchedule(o);
    EXPECT_EQ(s.gather_slots, limit == 0 ? 6 : limit);
    // Gathers are free: only slots hold them back. Units that are gathered but not freed yet.
    const Priced priced = Price(s, {});
    for (size_t t = 0; t < s.actions.size(); ++t) {
      int held = 0;
      for (size_t i = 0; i < s.actions.size(); ++i) {
        const Action& a = s.actions[i];
        if (a.kind != ActionKind::kGather || a.unit == 0) continue;
        const int free = Find(
            s, [&](const Action& f) { return f.kind == ActionKind::kFree && f.unit == a.unit; },
            static_cast<int>(i));
        ASSERT_GE(free, 0);
        held += priced.begin[i] <= priced.begin[t] && priced.begin[t] < priced.begin[free];
      }
      EXPECT_LE(held, s.gather_slots);
    }
  }
}

TEST(Schedule, OneSlotMeansNoPrefetch) {
  ScheduleOptions o = OfBlocks(4, 2);
  o.limit_all_gathers = 1;
  const Schedule s = MakeSchedule(o);
  const Priced priced = Price(s, {.gather = 0.5});
  for (int i = 1; i < 4; ++i) {
    const int run = FindRun(s, i, Pass::kForward);
    const int gather =
        Find(s, [&](const Action& a) { return a.kind == ActionKind::kGather && a.unit == i + 1; });
    EXPECT_GE(priced.begin[gather], priced.end[run]);
  }
}

TEST(Schedule, OneCommunicatorIsOneQueue) {
  ScheduleOptions o = OfBlocks(4, 2);
  o.communicators = 1;
  for (const Action& a : MakeSchedule(o).actions) EXPECT_NE(a.stream, StreamId::kReduce);
  // With one queue the place in the list counts: the next gather goes out before the reduction.
  const Schedule s = MakeSchedule(o);
  for (int i = 2; i <= 4; ++i) {
    const int reduce =
        Find(s, [&](const Action& a) { return a.kind == ActionKind::kReduce && a.unit == i; });
    EXPECT_LT(FindBackwardGather(s, i - 1), reduce);
  }
}

TEST(Schedule, RecomputeRunsBeforeItsBackwardAndGathersNothingMore) {
  ScheduleOptions o = OfBlocks(3, 2);
  const Schedule plain = MakeSchedule(o);
  for (int i = 1; i <= 3; ++i) o.segments[i].recomputed = true;
  const Schedule s = MakeSchedule(o);
  EXPECT_EQ(Count(s, ActionKind::kGather), Count(plain, ActionKind::kGather));
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(FindRun(s, i, Pass::kRecompute) >= 0, true);
    EXPECT_LT(FindRun(s, i, Pass::kRecompute), FindRun(s, i, Pass::kBackward));
  }
}

TEST(Schedule, GradientSlotIsTakenAgainOnlyAfterItsReduction) {
  for (const int buffers : {1, 2, 3}) {
    ScheduleOptions o = OfBlocks(6, 2);
    o.reduce_buffers = buffers;
    const Schedule s = MakeSchedule(o);
    EXPECT_EQ(s.gradient_slots, buffers);
    const Priced priced =
        Price(s, {.gather = 5});  // Slow reductions: the slots hold backward back.
    std::map<int, int> reduce_of_slot;
    for (size_t i = 0; i < s.actions.size(); ++i) {
      const Action& a = s.actions[i];
      if (a.kind == ActionKind::kClear && reduce_of_slot.count(a.slot())) {
        EXPECT_GE(priced.begin[i], priced.end[reduce_of_slot[a.slot()]]);
      }
      if (a.kind == ActionKind::kReduce && a.slot() >= 0) reduce_of_slot[a.slot()] = i;
    }
  }
}

TEST(Schedule, EvalOnlyRunsForward) {
  ScheduleOptions o = OfBlocks(3, 2);
  o.mode = Mode::kEval;
  const Schedule s = MakeSchedule(o);
  EXPECT_EQ(Count(s, ActionKind::kRun), 5);
  EXPECT_EQ(Count(s, ActionKind::kGather), 4);
  EXPECT_EQ(Count(s, ActionKind::kOptimizer), 0);
  EXPECT_EQ(Count(s, ActionKind::kReduceScalars), 1);
}

TEST(Schedule, OnlyPostAndNonePace) {
  for (const BackwardPrefetch prefetch :
       {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
    ScheduleOptions o = OfBlocks(5, 2);
    o.backward_prefetch = prefetch;
    int pacing = 0;
    for (const Action& a : MakeSchedule(o).actions) {
      for (const Wait& wait : a.waits) pacing += wait.pacing;
    }
    EXPECT_EQ(pacing > 0, prefetch != BackwardPrefetch::kPre);
  }
}

TEST(Schedule, HashTellsSettingsApart) {
  ScheduleOptions o = OfBlocks(3, 2);
  const uint64_t hash = MakeSchedule(o).Hash();
  EXPECT_EQ(hash, MakeSchedule(o).Hash());
  o.reduce_buffers = 1;
  EXPECT_NE(hash, MakeSchedule(o).Hash());
}

// The units of a kind of action, in its order.
std::vector<int> UnitsOf(const Schedule& s, ActionKind kind) {
  std::vector<int> units;
  for (const Action& a : s.actions) {
    if (a.kind == kind) units.push_back(a.unit);
  }
  return units;
}

TEST(Schedule, UpdatesAreInTheOrderOfTheNextForward) {
  const Schedule s = MakeSchedule(OfBlocks(4, 2));
  EXPECT_EQ(UnitsOf(s, ActionKind::kSumSquares), (std::vector<int>{4, 3, 2, 1, 0}));
  EXPECT_EQ(UnitsOf(s, ActionKind::kOptimizer), (std::vector<int>{0, 1, 2, 3, 4}));
}

// The first gather of a unit for its update, a load for the last run of what its slot held, and the
// compute stream for nothing: it has seen the end of everything.
TEST(Schedule, AStepWaitsForTheNeededPartsOfTheOneBefore) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const int communicators : {1, 2}) {
      ScheduleOptions o = OfBlocks(4, strategy == Strategy::kNoShard ? 1 : 2);
      o.sharding_strategy = strategy;
      if (strategy == Strategy::kNoShard) SetAll(o.units, &UnitRow::cast), o.replicas = 2;
      o.communicators = communicators;
      o.limit_all_gathers = 0;  // Or a later unit's slot waits for an earlier one of this step.
      o.micro_batches = 2;
      const Schedule s = MakeSchedule(o);
      std::map<int, int> gathers;
      for (const Action& a : s.actions) {
        std::vector<const Action*> before;
        for (const Wait& wait : a.waits) {
          if (wait.step_before) before.push_back(&s.actions[wait.action]);
        }
        if (a.kind == ActionKind::kGather && gathers[a.unit]++ == 0) {
          ASSERT_EQ(before.size(), 1u) << ToString(a);
          EXPECT_EQ(before[0]->kind, ActionKind::kOptimizer);
          EXPECT_EQ(before[0]->unit, a.unit);
        } else if (a.kind == ActionKind::kLoad) {
          ASSERT_EQ(before.size(), 1u) << ToString(a);
          EXPECT_EQ(before[0]->kind, ActionKind::kRun);
          EXPECT_EQ(before[0]->segment, 0);
          EXPECT_EQ(before[0]->pass, Pass::kBackward);
          EXPECT_EQ(before[0]->micro_batch, a.micro_batch);
        } else {
          EXPECT_EQ(before.size(), 0u) << ToString(a);
        }
      }
      o.mode = Mode::kEval;
      for (const Action& a : MakeSchedule(o).actions) {
        for (const Wait& wait : a.waits) EXPECT_FALSE(wait.step_before) << ToString(a);
      }
    }
  }
}

// A first step begins with the root's gather and nothing beside it, the others do not.
TEST(Schedule, GathersOverlapTheUpdateBefore) {
  ScheduleOptions o = OfBlocks(6, 2);
  o.limit_all_gathers = 0;
  const Schedule s = MakeSchedule(o);
  const Prices prices{.gather = 1, .update = 1};
  const double period = Price(s, prices, 3).total - Price(s, prices, 2).total;
  EXPECT_DOUBLE_EQ(period, Price(s, prices).total - prices.gather) << "the root's";
}

// An untied embedding looks rows up: it is gathered forward alone, and its gradient reduced all the
// same.
TEST(Schedule, ATableIsNotGatheredBackward) {
  ScheduleOptions o = OfBlocks(3, 4);
  o.units.emplace_back();
  o.segments[0] = {.unit = 4, .read_in_backward = false};
  o.micro_batches = 2;
  for (const int secondary : {1, 2}) {
    for (const BackwardPrefetch prefetch :
         {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
      o.secondary = secondary;
      o.backward_prefetch = prefetch;
      const Schedule s = MakeSchedule(o);
      std::map<int, int> gathered, freed, reduced, kept;
      for (const Action& a : s.actions) {
        if (a.kind == ActionKind::kGather) ++gathered[a.unit];
        if (a.kind == ActionKind::kFree) ++freed[a.unit];
        if (a.kind == ActionKind::kReduce) ++reduced[a.unit];
        if (Is(a, "keep")) ++kept[a.unit];
      }
      EXPECT_EQ(gathered, (std::map<int, int>{{0, 1}, {1, 4}, {2, 4}, {3, 4}, {4, 2}}));
      EXPECT_EQ(freed, (std::map<int, int>{{1, 4}, {2, 4}, {3, 4}, {4, 2}}));
      EXPECT_EQ(reduced, (std::map<int, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}, {4, 2}}));
      EXPECT_EQ(kept.count(4), 0u);
    }
  }
}

// Units 0 (embedding and head), 1 and 2 are frozen; 3 and 4 train.
TEST(Schedule, FrozenUnitsAreGatheredAndNothingElse) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
    ScheduleOptions o = OfBlocks(4, 2);
    o.sharding_strategy = strategy;
    o.micro_batches = 2;
    for (const int u : {0, 1, 2}) o.units[u].trains = false;
    o.backward_from = 3;
    const Schedule s = MakeSchedule(o);
    for (const Action& a : s.actions) {
      const bool of_gradient = a.kind == ActionKind::kClear || a.kind == ActionKind::kReduce ||
                               a.kind == ActionKind::kAccumulate ||
                               a.kind == ActionKind::kSumSquares ||
                               a.kind == ActionKind::kOptimizer;
      EXPECT_TRUE(!of_gradient || a.unit == 3 || a.unit == 4) << ToString(a);
      EXPECT_TRUE(a.kind != ActionKind::kRun || a.pass == Pass::kForward || a.segment >= 3);
    }
    // The head's backward goes through the frozen root to what trains.
    EXPECT_GE(FindRun(s, 5, Pass::kBackward), 0);
    EXPECT_GE(FindRun(s, 3, Pass::kBackward, 1), 0);
    EXPECT_EQ(Count(s, ActionKind::kOptimizer), 2);
    EXPECT_EQ(Count(s, ActionKind::kReduce), 2 * 2);
    // Every unit once a micro-batch forward, and the last two again backward where they are freed,
    // but for the last one of all, which is still there. The root once a step.
    const bool freed = strategy == Strategy::kFullShard;
    EXPECT_EQ(Count(s, ActionKind::kGather), freed ? 1 + 2 * (4 + 2) : 5);
  }
}

// With one shard a run waits for the root's return only if it reads what returns: a frozen
// embedding beside a head that trains does not.
TEST(Schedule, FrozenSegmentsWaitForNoReturn) {
  for (const bool frozen : {false, true}) {
    ScheduleOptions o = OfBlocks(1, 1);
    o.sharding_strategy = Strategy::kNoShard;
    SetAll(o.units, &UnitRow::on_host);
    o.segments[0].frozen = frozen;
    const Schedule s = MakeSchedule(o);
    const int returned = Find(s, [](const Action& a) { return Is(a, "return") && a.unit == 0; });
    const std::vector<Wait>& waits = s.actions[FindRun(s, 0, Pass::kForward)].waits;
    const auto is_for_it = [&](const Wait& w) { return w.step_before && w.action == returned; };
    EXPECT_EQ(std::ranges::any_of(waits, is_for_it), !frozen) << s.ToString();
  }
}

// Four ranks in two groups.
ScheduleOptions Hybrid(Strategy strategy) {
  ScheduleOptions o = OfBlocks(3, 2);
  o.sharding_strategy = strategy;
  o.replicas = 2;
  return o;
}

// As the same strategy with all ranks in one group, and one all-reduce for each unit.
TEST(Schedule, HybridAllReducesEachShardOnceAStep) {
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kUnsharded}) {
    for (const Strategy strategy : {Strategy::kHybridShard, Strategy::kHybridShardGradOp}) {
      ScheduleOptions o = Hybrid(strategy);
      o.micro_batches = 3;
      o.gradient_accumulation = accumulation;
      const Schedule s = MakeSchedule(o);
      o.sharding_strategy =
          strategy == Strategy::kHybridShard ? Strategy::kFullShard : Strategy::kShardGradOp;
      o.replicas = 1;
      const Schedule in_one_group = MakeSchedule(o);
      for (const ActionKind kind : {ActionKind::kGather, ActionKind::kFree, ActionKind::kReduce,
                                    ActionKind::kAccumulate, ActionKind::kReduceScalars}) {
        EXPECT_EQ(Count(s, kind), Count(in_one_group, kind));
      }
      EXPECT_EQ(Count(in_one_group, ActionKind::kAllReduce), 0);
      std::map<int, int> of_unit;
      for (const Action& a : s.actions) {
        if (a.kind != ActionKind::kAllReduce) continue;
        ++of_unit[a.unit];
        EXPECT_EQ(a.micro_batch, 2);
      }
      EXPECT_EQ(of_unit, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
    }
  }
}

// It waits for the unit's own reduction and nothing else, and no reduction waits for it.
TEST(Schedule, HybridAllReducesBehindTheNextReduction) {
  for (const int communicators : {1, 2}) {
    ScheduleOptions o = Hybrid(Strategy::kHybridShard);
    o.communicators = communicators;
    const Schedule s = MakeSchedule(o);
    for (size_t i = 0; i < s.actions.size(); ++i) {
      const Action& a = s.actions[i];
      if (a.kind != ActionKind::kAllReduce) {
        for (const Wait& wait : a.waits) {
          EXPECT_TRUE(s.actions[wait.action].kind != ActionKind::kAllReduce ||
                      a.kind == ActionKind::kSumSquares);
        }
        continue;
      }
      EXPECT_EQ(a.stream, StreamId::kReplicate);
      ASSERT_EQ(a.waits.size(), 1u);
      const Action& before = s.actions[a.waits[0].action];
      EXPECT_EQ(before.kind, ActionKind::kReduce);
      EXPECT_EQ(before.unit, a.unit);
    }
  }
}

// Forward gathers over all, backward over the neighbours, from what each forward kept.
TEST(Schedule, ASecondaryCopyServesBackward) {
  ScheduleOptions o = OfBlocks(4, 4);
  o.secondary = 2;
  o.micro_batches = 2;
  o.backward_from = 2;  // Nothing trains in the embedding and the first block.
  const Schedule s = MakeSchedule(o);
  std::map<int, int> kept, gathered, again;
  for (const Action& a : s.actions) {
    if (Is(a, "keep")) ++kept[a.unit];
    if (a.kind == ActionKind::kGather) ++(a.secondary() ? again : gathered)[a.unit];
  }
  EXPECT_EQ(kept, (std::map<int, int>{{2, 2}, {3, 2}, {4, 2}}));
  EXPECT_EQ(again, kept);
  EXPECT_EQ(gathered, (std::map<int, int>{{0, 1}, {1, 2}, {2, 2}, {3, 2}, {4, 2}}));
  o.mode = Mode::kEval;
  EXPECT_EQ(Count(MakeSchedule(o), "keep"), 0);
}

// On one rank, of what is offloaded: beside the backward of the block behind, if there is a slot.
TEST(Schedule, SumsComeBackAheadOfTheirBackward) {
  ScheduleOptions options = OfBlocks(4, 1);
  options.micro_batches = 2;
  SetAll(options.units, &UnitRow::on_host);
  for (const int slots : {1, 2}) {
    options.reduce_buffers = slots;
    const Schedule s = MakeSchedule(options);
    const auto fetch_of = [&](int unit) {
      return Find(s, [&](const Action& a) { return Is(a, "fetch_gradient") && a.unit == unit; });
    };
    ASSERT_GE(fetch_of(0), 0);
    EXPECT_LT(fetch_of(0), FindRun(s, 5, Pass::kForward, 1));
    for (int unit = 1; unit <= 4; ++unit) {
      const int fetch = fetch_of(unit);
      EXPECT_LT(fetch, FindRun(s, unit, Pass::kBackward, 1));
      EXPECT_EQ(fetch < FindRun(s, unit + 1, Pass::kBackward, 1), slots == 2) << unit;
    }
  }
}

// An embedding, which looks rows up, and a head in the root: one gather and one free around all of
// the step, one gradient from the head's backward to the embedding's.
TEST(Schedule, TheRootIsHeldToTheEndOfBackward) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
    for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
      ScheduleOptions o = OfBlocks(3, 2);
      o.mode = mode;
      o.sharding_strategy = strategy;
      o.micro_batches = mode == Mode::kTrain ? 2 : 1;
      o.segments[0].read_in_backward = false;
      o.limiter = FsdpOptions::Limiter::kHost;
      o.buffers = FsdpOptions::Buffers::kCaching;
      const auto of_root = [](ActionKind kind) {
        return [kind](const Action& a) { return a.kind == kind && a.unit == 0; };
      };
      const Schedule units = MakeSchedule(o);
      o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
      const Schedule s = MakeSchedule(o);
      for (const ActionKind kind : {ActionKind::kGather, ActionKind::kFree}) {
        EXPECT_EQ(Count(s, kind), Count(units, kind));
        EXPECT_EQ(std::ranges::count_if(s.actions, of_root(kind)), 1);
      }
      EXPECT_LT(Find(s, of_root(ActionKind::kGather)), FindRun(s, 0, Pass::kForward));
      // With units its last reader is the head.
      const int free = Find(s, of_root(ActionKind::kFree));
      if (mode == Mode::kEval) {
        EXPECT_LT(FindRun(s, 4, Pass::kForward), free);
        continue;
      }
      const int last = FindRun(s, 0, Pass::kBackward, 1);
      EXPECT_LT(last, free);
      EXPECT_LT(Find(units, of_root(ActionKind::kFree)), FindRun(units, 3, Pass::kBackward, 1));
      for (int m = 0; m < 2; ++m) {
        const auto in = [&](ActionKind kind) {
          return Find(s, [&](const Action& a) { return of_root(kind)(a) && a.micro_batch == m; });
        };
        EXPECT_LT(in(ActionKind::kClear), FindRun(s, 4, Pass::kBackward, m));
        EXPECT_LT(FindRun(s, 0, Pass::kBackward, m), in(ActionKind::kReduce));
      }
      EXPECT_EQ(UnitsOf(s, ActionKind::kReduce), (std::vector<int>{3, 2, 1, 0, 3, 2, 1, 0}));
      o.gradient_accumulation = Accumulation::kUnsharded;
      const Schedule once = MakeSchedule(o);
      EXPECT_EQ(UnitsOf(once, ActionKind::kReduce), (std::vector<int>{3, 2, 1, 0}));
      EXPECT_EQ(UnitsOf(once, ActionKind::kClear), (std::vector<int>{0, 3, 2, 1}));
    }
  }
}

// Where what comes first is frozen, the step's last run is a block's.
TEST(Schedule, TheRootIsHeldWhereItsEmbeddingIsFrozen) {
  ScheduleOptions o = OfBlocks(3, 2);
  o.limiter = FsdpOptions::Limiter::kHost;
  o.buffers = FsdpOptions::Buffers::kCaching;
  o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
  o.backward_from = 2;
  const Schedule s = MakeSchedule(o);
  const auto free_of = [&](int unit) {
    return Find(
        s, [&](const Action& a) { return a.kind == ActionKind::kFree && a.unit == unit; },
        FindRun(s, 2, Pass::kBackward));
  };
  EXPECT_GT(free_of(2), 0);
  EXPECT_GT(free_of(0), free_of(2));
}

// With slots the root has memory of its own either way: where it holds the same, the list is.
TEST(Schedule, SlotsAreNotTheRoots) {
  ScheduleOptions o = OfBlocks(3, 2);
  const uint64_t units = MakeSchedule(o).Hash();
  o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
  const Schedule s = MakeSchedule(o);
  EXPECT_EQ(s.Hash(), units);
  for (const Action& a : s.actions) {
    EXPECT_TRUE(a.unit != 0 || a.slot() < 0) << ToString(a);
  }
}

// Ranks of one job compare it, and so may a person two builds: a schedule of today is the schedule
// of tomorrow, waits included, unless somebody means to change it.
TEST(Schedule, TheListsOfThisBuildAreThoseOfTheLast) {
  std::string all;
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
      for (int bits = 0; bits < 64; ++bits) {
        const bool replicated = strategy == Strategy::kNoShard;
        ScheduleOptions o = OfBlocks(4, replicated ? 1 : 3);
        o.mode = mode;
        o.sharding_strategy = strategy;
        o.replicas = replicated ? 3 : 1;
        o.backward_prefetch = static_cast<BackwardPrefetch>(bits % 3);
        o.forward_prefetch = bits & 1;
        o.communicators = bits & 2 ? 1 : 2;
        o.gradient_accumulation = bits & 4 ? Accumulation::kUnsharded : Accumulation::kSharded;
        o.limit_all_gathers = bits & 8 ? 0 : 2;
        o.micro_batches = bits & 16 && mode == Mode::kTrain ? 3 : 1;
        o.poison = bits & 16;
        if (bits & 32) {
          o.units[1].trains = o.units[3].trains = false;
          SetAll(o.segments, &SegmentRow::recomputed);
        }
        all += MakeSchedule(o).ToString();
      }
    }
  }
  EXPECT_EQ(HashBytes(all), 0x1b517d61a7119e6bu);
}

TEST(Schedule, RefusesOptionsOutOfRange) {
  const auto refused = [](const std::function<void(ScheduleOptions&)>& change) {
    ScheduleOptions o = OfBlocks(3, 2);
    change(o);
    EXPECT_THROW(MakeSchedule(o), std::invalid_argument);
  };
  refused([](ScheduleOptions& o) { o.segments.clear(); });
  refused([](ScheduleOptions& o) { o.backward_from = 100; });
  refused([](ScheduleOptions& o) { o.units.pop_back(); });
  refused([](ScheduleOptions& o) { o.shards = 0; });
  refused([](ScheduleOptions& o) { o.sharding_strategy = Strategy::kNoShard; });
  refused([](ScheduleOptions& o) { o.replicas = 2; });  // full_shard has one.
  refused([](ScheduleOptions& o) { o.secondary = 3; });
  refused([](ScheduleOptions& o) { o.micro_batches = 0; });
  refused([](ScheduleOptions& o) { o.limit_all_gathers = -1; });
  refused([](ScheduleOptions& o) { o.reduce_buffers = 0; });
  refused([](ScheduleOptions& o) { o.communicators = 3; });
}

}  // namespace
}  // namespace fsdp
