// Schedules under `limiter: host` and `buffers: caching`, followed by the rules of the paper's
// runtime: a queue of the frees that are outstanding.
#include "trainer/fsdp/rate_limiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/block_schedule.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {
namespace {

ScheduleOptions Blocks(int blocks, FsdpOptions::Buffers buffers) {
  ScheduleOptions options = OfBlocks(blocks, /*shards=*/2);
  options.limiter = FsdpOptions::Limiter::kHost;
  options.buffers = buffers;
  return options;
}
constexpr auto kSlots = FsdpOptions::Buffers::kSlots;
constexpr auto kCaching = FsdpOptions::Buffers::kCaching;

std::vector<ScheduleOptions> Settings(FsdpOptions::Buffers buffers) {
  std::vector<ScheduleOptions> settings;
  for (const int blocks : {1, 2, 5}) {
    for (const int limit : {1, 2, 3, 9}) {
      for (int bits = 0; bits < 48; ++bits) {
        ScheduleOptions o = Blocks(blocks, buffers);
        o.limit_all_gathers = limit;
        o.backward_prefetch = static_cast<BackwardPrefetch>(bits % 3);
        o.forward_prefetch = bits & 1;
        o.micro_batches = bits & 2 ? 3 : 1;
        o.communicators = bits & 4 ? 1 : 2;
        o.poison = bits & 8;
        if (bits & 16) SetAll(o.segments, &SegmentRow::recomputed);
        if (bits & 32) o.secondary = 2;
        settings.push_back(o);
      }
    }
  }
  return settings;
}

bool IsFreed(const Action& a) { return a.unit > 0; }

int Count(const Schedule& s, ActionKind kind) {
  return static_cast<int>(std::count_if(s.actions.begin(), s.actions.end(),
                                        [&](const Action& a) { return a.kind == kind; }));
}

// An action of a step.
using At = std::pair<int, int>;

// Where the wait of step `step` leads; a wait of nothing to the beginning of time.
At TargetOf(const Action& a, int step) {
  if (a.waits.empty()) return {-1, -1};
  return {step - a.waits[0].step_before, a.waits[0].action};
}

// A queue of frees: at each gather, where it holds as many as the limit, the oldest is waited for.
TEST(RateLimiter, WithCachingItIsAWindowOverFrees) {
  for (const ScheduleOptions& o : Settings(kCaching)) {
    const Schedule s = MakeSchedule(o);
    const int most =
        static_cast<int>(std::min<int64_t>(o.limit_all_gathers, std::ssize(o.segments) - 2));
    std::deque<At> queue;
    int waits = 0;
    for (int step = 0; step < 6; ++step) {
      for (int i = 0; i < static_cast<int>(s.actions.size()); ++i) {
        const Action& a = s.actions[i];
        if (a.kind == ActionKind::kFree && IsFreed(a)) queue.emplace_back(step, i);
        if (a.kind != ActionKind::kGather || !IsFreed(a)) continue;
        const bool limited = s.actions[i - 1].kind == ActionKind::kHostWait;
        if (static_cast<int>(queue.size()) < most) {
          EXPECT_TRUE(step < 4 || !limited) << i << "\n" << s.ToString();
          continue;
        }
        // A first step has nothing to wait for, but what it waits for is behind it all.
        ASSERT_TRUE(limited) << i << "\n" << s.ToString();
        if (step >= 4) {
          EXPECT_EQ(TargetOf(s.actions[i - 1], step), queue.front()) << i << "\n" << s.ToString();
          EXPECT_TRUE(s.actions[i - 1].waits[0].pacing);
          EXPECT_EQ(s.actions[i - 1].unit, a.unit);
        }
        queue.pop_front();
        ++waits;
      }
    }
    EXPECT_GT(waits, 0);
    if (testing::Test::HasFailure()) return;
  }
}

// The free of the gather that had the slot before, which no gather then waits for.
TEST(RateLimiter, WithSlotsItIsTheSlotsFree) {
  int needed = 0;  // Others wait for updates, too, which are behind all frees.
  for (const ScheduleOptions& o : Settings(kSlots)) {
    const Schedule s = MakeSchedule(o);
    std::map<int, At> last;  // Free, by slot.
    At waited{-1, -1};
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < static_cast<int>(s.actions.size()); ++i) {
        const Action& a = s.actions[i];
        if (a.kind == ActionKind::kFree) last[a.slot()] = {step, i};
        if (a.kind != ActionKind::kGather || a.slot() < 0) continue;
        ASSERT_EQ(s.actions[i - 1].kind, ActionKind::kHostWait) << s.ToString();
        if (step == 0) continue;
        const Action& limited = s.actions[i - 1];
        if (limited.waits.empty()) {  // Slots begin with the first in each step.
          EXPECT_LE(last.at(a.slot()), waited) << i << "\n" << s.ToString();
          continue;
        }
        waited = TargetOf(limited, step);
        EXPECT_EQ(waited, last.at(a.slot())) << i << "\n" << s.ToString();
        needed += !limited.waits[0].pacing;
        for (const Wait& wait : a.waits) {
          const ActionKind kind = s.actions[wait.action].kind;
          EXPECT_NE(kind, ActionKind::kFree);
          // But for the copy that was kept.
          EXPECT_TRUE(kind != ActionKind::kRun || wait.pacing || a.secondary()) << s.ToString();
        }
      }
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(needed, 1000);
}

TEST(RateLimiter, CountsFreesAlone) {
  for (const FsdpOptions::Buffers buffers : {kSlots, kCaching}) {
    ScheduleOptions o = Blocks(5, buffers);
    EXPECT_GT(Count(MakeSchedule(o), ActionKind::kHostWait), 0);
    o.limit_all_gathers = 0;
    EXPECT_EQ(Count(MakeSchedule(o), ActionKind::kHostWait), 0);
    o.limit_all_gathers = 1;
    o.sharding_strategy = Strategy::kShardGradOp;
    EXPECT_EQ(Count(MakeSchedule(o), ActionKind::kHostWait), 0);
    o.shards = 1;
    o.replicas = 2;
    o.sharding_strategy = Strategy::kNoShard;
    EXPECT_EQ(Count(MakeSchedule(o), ActionKind::kHostWait), 0);
  }
}

TEST(RateLimiter, AnEvaluationBeginsWithNothingOutstanding) {
  ScheduleOptions o = Blocks(5, kCaching);
  o.mode = Mode::kEval;
  const Schedule s = MakeSchedule(o);
  EXPECT_EQ(Count(s, ActionKind::kHostWait), 2);  // With a gather ahead, units 4 and 5 wait.
  for (const Action& a : s.actions) {
    for (const Wait& wait : a.waits) EXPECT_FALSE(wait.step_before);
  }
}

TEST(CachingBuffers, KeptUnitsAreFreedBehindTheirLastUse) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
    ScheduleOptions o = Blocks(3, kCaching);
    o.sharding_strategy = strategy;
    o.micro_batches = 2;
    const Schedule s = MakeSchedule(o);
    EXPECT_EQ(s.gather_slots + s.gradient_slots, 0);
    std::map<int, int> gathers, frees, last_run, last_free;
    for (int i = 0; i < static_cast<int>(s.actions.size()); ++i) {
      const Action& a = s.actions[i];
      if (a.kind == ActionKind::kGather) ++gathers[a.unit];
      if (a.kind == ActionKind::kRun) last_run[o.segments[a.segment].unit] = i;
      if (a.kind != ActionKind::kFree) continue;
      ++frees[a.unit];
      last_free[a.unit] = i;
    }
    const int each = strategy == Strategy::kFullShard ? 4 : 1;
    EXPECT_EQ(gathers, (std::map<int, int>{{0, 1}, {1, each}, {2, each}, {3, each}}));
    EXPECT_EQ(frees, gathers);
    for (const auto& [unit, i] : last_free) EXPECT_GT(i, last_run[unit]);
  }
}

// A unit with memory of its own waits for no one that had it before.
TEST(CachingBuffers, MemoryIsNotWaitedFor) {
  for (ScheduleOptions o : Settings(kCaching)) {
    o.backward_prefetch = BackwardPrefetch::kPre;  // Others wait for runs to pace.
    o.secondary = 1;
    const Schedule s = MakeSchedule(o);
    for (const Action& a : s.actions) {
      if (a.kind != ActionKind::kGather) continue;
      for (const Wait& wait : a.waits) {  // The shard's last writer alone.
        EXPECT_EQ(s.actions[wait.action].kind, ActionKind::kOptimizer) << s.ToString();
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(CachingBuffers, WantTheHostsLimiter) {
  ScheduleOptions o = Blocks(3, kCaching);
  o.limiter = FsdpOptions::Limiter::kDevice;
  EXPECT_THROW(MakeSchedule(o), std::invalid_argument);
}

TEST(CachingBuffers, OffloadNothing) {
  for (bool UnitRow::*where : {&UnitRow::on_host, &UnitRow::fetched}) {
    ScheduleOptions o = Blocks(3, kCaching);
    o.units[2].*where = true;
    EXPECT_THROW(MakeSchedule(o), std::invalid_argument);
    o.buffers = kSlots;
    EXPECT_FALSE(MakeSchedule(o).actions.empty());
  }
}

}  // namespace
}  // namespace fsdp
