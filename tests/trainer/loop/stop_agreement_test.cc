#include "trainer/loop/stop_agreement.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/trainer/comm/on_threads.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::OnThreads;

const TimeLimit kNoLimit(std::nullopt);

Job JobOf(Store& store, int rank, int world) {
  Job job;
  job.rank = rank;
  job.world = world;
  job.store = &store;
  return job;
}

// Ranks that begin passes until they may not, each at its own pace and at most two passes ahead of
// the slowest, as in training. Notes how many each has begun, and rank 0's words.
struct Ranks {
  explicit Ranks(int size) : world(size), begun(size) {}

  // `stops(rank)`: whether the rank hears a stop. Returns what each threw.
  Strings Run(const std::function<bool(int rank)>& stops, int64_t last = 1 << 30) {
    return OnThreads(world, [&](int rank) {
      Job job = JobOf(store, rank, world);
      job.stop_requested = [&, rank] { return stops(rank); };
      StopAgreement agreement(job, 100, kNoLimit, [&](const AgreedStop& stop) {
        said.push_back("step " + std::to_string(stop.step));
        if (rank != 0) said.emplace_back("by another rank");
      });
      std::mt19937 random(static_cast<uint32_t>(rank));
      while (begun[rank] < last && agreement.Begin(100 + begun[rank] + 1)) {
        ++begun[rank];
        std::this_thread::sleep_for(microseconds(random() % 200));
        for (const auto& other : begun) {
          while (other + 2 < begun[rank] && store.FailureReason().empty()) {
            std::this_thread::yield();
          }
        }
      }
      const std::optional<AgreedStop> stop = agreement.End();
      EXPECT_EQ(agreement.passes(), begun[rank]);
      if (stop) {
        EXPECT_EQ(stop->pass, begun[rank]);
        EXPECT_EQ(stop->step, 100 + begun[rank]);
      }
      stopped += stop ? 1 : 0;
      Barrier(store, "end", rank, world);
    });
  }

  MemoryStore store{/*timeout_s=*/20};
  const int world;
  std::vector<std::atomic<int64_t>> begun;
  std::atomic<int> stopped{0};
  Strings said;
};

TEST(StopAgreement, EndsAllRanksAfterTheSamePass) {
  for (const int world : {1, 3}) {
    for (int told = 0; told <= world; ++told) {  // The last time all of them, as a launcher does.
      for (const int after : {1, 7, 40}) {
        SCOPED_TRACE(std::to_string(world) + " ranks, told " + std::to_string(told) + " after " +
                     std::to_string(after));
        Ranks ranks(world);
        const Strings ends = ranks.Run([&](int rank) {
          return (rank == told || told == world) && ranks.begun[rank] >= after;
        });
        EXPECT_EQ(ends, Strings(world));
        for (const auto& begun : ranks.begun) EXPECT_EQ(begun, ranks.begun[0]);
        EXPECT_GE(ranks.begun[0], after);
        EXPECT_LE(ranks.begun[0], after + 4);  // Nobody is two passes ahead and begins two more.
        EXPECT_EQ(ranks.stopped, world);
        EXPECT_EQ(ranks.said, Strings{"step " + std::to_string(100 + ranks.begun[0])});
      }
    }
  }
}

TEST(StopAgreement, BeforeTheFirstPassHasNone) {
  Ranks ranks(3);
  EXPECT_EQ(ranks.Run([](int) { return true; }), Strings(3));
  for (const auto& begun : ranks.begun) EXPECT_EQ(begun, 0);
  EXPECT_EQ(ranks.said, Strings());
}

// One rank has begun its last pass, and is at its end, when another hears of a stop.
TEST(StopAgreement, ARunThatEndsIsNotStopped) {
  Ranks ranks(3);
  std::atomic<bool> ended{false};
  const Strings ends = ranks.Run(
      [&](int rank) {
        ended = ended || ranks.begun[0] == 9;
        return rank == 2 && ended;
      },
      /*last=*/9);
  EXPECT_EQ(ends, Strings(3));
  if (ranks.stopped == 0) {
    EXPECT_EQ(ranks.said, Strings());
  } else {  // All had yet to end.
    EXPECT_EQ(ranks.said.size(), 1u);
  }
  for (const auto& begun : ranks.begun) EXPECT_EQ(begun, ranks.begun[0]);
}

TEST(StopAgreement, AtTheEndNobodyIsWaitedForAndNothingSaid) {
  MemoryStore store(/*timeout_s=*/20);
  const Job ended = JobOf(store, 0, 2);
  Job told = JobOf(store, 1, 2);
  std::atomic<bool> stop{false};
  told.stop_requested = [&] { return stop.load(); };
  Strings said;
  StopAgreement first(ended, 0, kNoLimit, [&](const AgreedStop&) { said.emplace_back("stop"); });
  StopAgreement second(told, 0, kNoLimit, nullptr);
  EXPECT_TRUE(first.Begin(1));
  EXPECT_FALSE(first.End());
  stop = true;
  EXPECT_TRUE(second.Begin(1));
  EXPECT_FALSE(second.End());
  EXPECT_FALSE(second.End());
  EXPECT_EQ(said, Strings());
}

// A failure, not a request: told to the ranks alone.
TEST(StopAgreement, WhatNobodyAskedForIsNotSaid) {
  MemoryStore store;
  Strings said;
  StopAgreement agreement(JobOf(store, 0, 1), 0, kNoLimit,
                          [&](const AgreedStop&) { said.emplace_back("stop"); });
  EXPECT_TRUE(agreement.Begin(1));
  agreement.Ask(StopCause::kOther);
  EXPECT_FALSE(agreement.Begin(2));
  ASSERT_TRUE(agreement.End());
  EXPECT_EQ(said, Strings());
}

TEST(StopAgreement, ARankThatDiesOrIsSilentEndsTheOthers) {
  for (const bool dies : {true, false}) {
    MemoryStore store(/*timeout_s=*/0.3);
    const Strings ends = OnThreads(3, [&](int rank) {
      if (rank == 2) {  // Makes no agreement.
        std::this_thread::sleep_for(milliseconds(50));
        return dies ? store.Fail("rank 2 is gone") : void();
      }
      Job job = JobOf(store, rank, 3);
      job.stop_requested = [&] { return rank == 0; };
      StopAgreement agreement(job, 0, kNoLimit, nullptr);
      while (agreement.Begin(1)) std::this_thread::sleep_for(milliseconds(1));
    });
    const std::string why =
        dies ? "rank 2 is gone"
             : "[stop] rank 2 has not said within run.timeout_s which step it has begun";
    EXPECT_EQ(ends, (Strings{why, why, ""}));
  }
}

// Counts what a rank asks of its store.
class CountingStore final : public Store {
 public:
  explicit CountingStore(Store& store) : Store(store.timeout_s()), store_(store) {}

  void Set(const std::string& key, const std::string& value) override {
    ++asked;
    store_.Set(key, value);
  }
  int64_t Add(const std::string& key, int64_t delta) override {
    ++asked;
    return store_.Add(key, delta);
  }
  void Forget(const std::string& prefix) override { store_.Forget(prefix); }
  std::vector<std::optional<std::string>> Fetch(const Strings& keys, double timeout_s) override {
    ++asked;
    return store_.Fetch(keys, timeout_s);
  }
  void Fail(const std::string& why) override { store_.Fail(why); }
  std::string FailureReason() const override { return store_.FailureReason(); }
  void OnFailure(Callback callback) override { store_.OnFailure(std::move(callback)); }
  void Announce(const std::string& what) override {
    ++asked;
    store_.Announce(what);
  }
  void OnAnnouncement(Callback callback) override { store_.OnAnnouncement(std::move(callback)); }
  void Leave() override {}

  std::atomic<int> asked{0};

 private:
  Store& store_;
};

TEST(StopAgreement, AsksNothingWhileThereIsNoStop) {
  MemoryStore store;
  CountingStore counting(store);
  std::atomic<bool> stop{false};
  Job job = JobOf(counting, 0, 1);
  job.stop_requested = [&] { return stop.load(); };
  StopAgreement agreement(job, 0, kNoLimit, [](const AgreedStop&) {});
  for (int step = 1; step <= 60; ++step) {
    EXPECT_TRUE(agreement.Begin(step));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(counting.asked, 0);
  stop = true;
  EXPECT_FALSE(agreement.Begin(61));
  EXPECT_EQ(counting.asked, 3);  // It announces, answers, and reads.
}

TEST(TimeLimit, LeavesTimeForTheStepsUnderWayAndASave) {
  const auto now = TimeLimit::Clock::now();
  const auto near = [&](seconds left, seconds step, std::optional<double> save_s) {
    TimeLimit limit(now + left);
    EXPECT_FALSE(limit.IsNear());  // No step has ended.
    limit.StepEnded(now - step, save_s);
    return limit.IsNear();
  };
  EXPECT_FALSE(near(seconds(75), seconds(5), std::nullopt));
  EXPECT_TRUE(near(seconds(69), seconds(5), std::nullopt));
  EXPECT_FALSE(near(seconds(25), seconds(5), 10));
  EXPECT_TRUE(near(seconds(19), seconds(5), 10));
  TimeLimit none(std::nullopt);
  none.StepEnded(now - seconds(5), 10);
  EXPECT_FALSE(none.IsNear());
  // A step that was issued while the one before it ran has begun when that one ended.
  TimeLimit behind(now + seconds(25));
  behind.StepEnded(now - seconds(20), 10);
  EXPECT_TRUE(behind.IsNear());
  behind.StepEnded(now - seconds(20), 10);
  EXPECT_FALSE(behind.IsNear());
}

}  // namespace
}  // namespace fsdp
