#include "trainer/loop/failure_protocol.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/store/memory_store.h"
#include "trainer/comm/store/together.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

Job JobOf(Store& store, int rank = 0, int world = 1) {
  Job job;
  job.rank = rank;
  job.world = world;
  job.store = &store;
  return job;
}

// The end of a life, in words.
std::string EndOf(const std::function<void()>& life) {
  try {
    life();
    return "done";
  } catch (const ReportedElsewhere& error) {
    return std::string("told: ") + error.what();
  } catch (const EarlyStop&) {
    return "stopped";
  } catch (const CommError& error) {
    return std::string("comm: ") + error.what();
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
  } catch (const std::exception& error) {
    return std::string("other: ") + error.what();
  }
}

// How a run ends that `error` ends, and what its parts were asked, in order.
struct Asked {
  Strings parts;
  std::string end;
};
Asked EndRunBy(const Job& job, const std::function<void()>& error,
               std::exception_ptr cause = nullptr) {
  Asked asked;
  EndingHooks hooks;
  hooks.where = [] { return "the updating"; };
  hooks.abort = [&](const std::string& why) { asked.parts.push_back("abort " + why); };
  hooks.give_up = [&](const std::exception& by) {
    asked.parts.push_back(std::string("give up ") + by.what());
    return cause;
  };
  hooks.record_stop = [&] { asked.parts.push_back("stop"); };
  hooks.record_failure = [&](const std::string& why) { asked.parts.push_back("failure " + why); };
  asked.end = EndOf([&] {
    try {
      error();
    } catch (const std::exception& by) {
      EndRun(job, by, hooks);
    }
  });
  return asked;
}

TEST(EndRun, ThrowsWhatCame) {
  MemoryStore store;
  const Asked asked = EndRunBy(JobOf(store), [] { throw DataError("a hole"); });
  EXPECT_EQ(asked.parts, (Strings{"abort a hole", "give up a hole", "failure a hole"}));
  EXPECT_EQ(asked.end, "4: a hole");
}

TEST(EndRun, SaysWhereItStoodWhenAPeerFailed) {
  MemoryStore store;
  const Asked asked = EndRunBy(JobOf(store, 2, 3), [] { throw CommError("rank 1 is gone"); });
  const std::string said = "rank 1 is gone; rank 2 stood at the updating";
  EXPECT_EQ(asked.parts,
            (Strings{"abort rank 1 is gone", "give up rank 1 is gone", "failure " + said}));
  EXPECT_EQ(asked.end, "comm: " + said);
}

TEST(EndRun, PrefersTheCauseToItsEcho) {
  MemoryStore store;
  const Asked asked = EndRunBy(
      JobOf(store), [] { throw CommError("rank 1 is gone"); },
      std::make_exception_ptr(CheckpointError("disk full")));
  EXPECT_EQ(asked.parts.back(), "failure disk full");
  EXPECT_EQ(asked.end, "5: disk full");
}

TEST(EndRun, AStopBeforeTheFirstStepIsNoFailure) {
  MemoryStore store;
  store.Fail(std::string("rank 1: ") + EarlyStop::kReason);
  const Asked asked = EndRunBy(JobOf(store), [] { throw CommError("the store has failed"); });
  EXPECT_EQ(asked.parts, (Strings{"abort the store has failed", "stop"}));
  EXPECT_EQ(asked.end, "comm: the store has failed");
}

TEST(EarlyStopWatch, FailsTheStoreUntilItEnds) {
  std::atomic<bool> stop{false};
  for (const bool before : {true, false}) {
    stop = false;
    MemoryStore store;
    Job job = JobOf(store, 1, 2);
    job.stop_requested = [&] { return stop.load(); };
    EarlyStopWatch watch(job);
    if (!before) {
      watch.End();
      stop = true;
      EXPECT_EQ(store.FailureReason(), "");
      continue;
    }
    stop = true;
    while (store.FailureReason().empty()) std::this_thread::yield();
    EXPECT_EQ(store.FailureReason(), std::string("rank 1: ") + EarlyStop::kReason);
    EXPECT_THROW(watch.End(), EarlyStop);
  }
}

// The ends of three ranks' lives.
Strings EndsOfThree(const std::function<RankWork(int rank)>& begin) {
  MemoryStore store(/*timeout_s=*/60);
  Strings ends(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const Job job = JobOf(store, rank, 3);
      ends[rank] = EndOf([&] { RunRank(job, [&] { return begin(rank); }); });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return ends;
}

TEST(RunRank, OneRankSaysWhatAllHaveFound) {
  const Strings one = {"4: a hole", "told: a hole", "told: a hole"};
  EXPECT_EQ(EndsOfThree([](int) -> RankWork { throw DataError("a hole"); }), one);
  const RankWork diverge = []() -> ExitCode { throw Error(ExitCode::kNotFinite, "loss nan"); };
  EXPECT_EQ(EndsOfThree([&](int) { return diverge; }),
            (Strings{"7: loss nan", "told: loss nan", "told: loss nan"}));
}

// Its communicators are gone before the others hear: who aborts them then aborts nothing.
TEST(RunRank, WorkIsDestroyedBeforeItsEndIsHeardOf) {
  MemoryStore store;
  const Job job = JobOf(store);
  std::string heard;
  struct Run {
    ~Run() { end = store.FailureReason().empty() ? "in silence" : "in public"; }
    Store& store;
    std::string& end;
  };
  EXPECT_EQ(EndOf([&] {
              RunRank(job, [&]() -> RankWork {
                return [run = std::make_shared<Run>(store, heard)]() -> ExitCode {
                  throw DataError("a hole");
                };
              });
            }),
            "4: a hole");
  EXPECT_EQ(heard, "in silence");
  EXPECT_EQ(store.FailureReason(), "rank 0: a hole");
}

}  // namespace
}  // namespace fsdp
