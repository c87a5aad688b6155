#include "trainer/runtime/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

namespace fsdp {
namespace {

TEST(ThreadPoolPart, TilesTheRangeAtGrainBorders) {
  for (const int64_t n : {0, 1, 2, 7, 63, 64, 65, 100, 1000, 4097}) {
    for (const int64_t grain : {1, 2, 3, 16, 64, 5000}) {
      for (int parts = 1; parts <= 9; ++parts) {
        int64_t at = 0, smallest = n, largest = 0;
        for (int t = 0; t < parts; ++t) {
          const auto [begin, end] = ThreadPool::Part(n, grain, parts, t);
          ASSERT_EQ(begin, at) << n << " " << grain << " " << parts << " " << t;
          ASSERT_LE(begin, end);
          ASSERT_TRUE(end == n || end % grain == 0);
          at = end;
          smallest = std::min(smallest, end - begin);
          largest = std::max(largest, end - begin);
        }
        ASSERT_EQ(at, n);
        // As even as whole grains allow; the last grain may be a short one.
        ASSERT_LT(largest - smallest, 2 * grain) << n << " " << grain << " " << parts;
      }
    }
  }
}

TEST(ThreadPoolPart, HoldsForLargeRanges) {
  const int64_t n = int64_t{1} << 50;
  EXPECT_EQ(ThreadPool::Part(n, 64, 64, 63), std::make_pair(n / 64 * 63, n));
}

TEST(ThreadPoolDeathTest, GrainIsPositive) {
  EXPECT_DEATH(ThreadPool::Part(10, 0, 2, 0), "broken invariant");
}

class ThreadPoolTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  const int threads_ = std::get<0>(GetParam());
  ThreadPool pool_{threads_, std::get<1>(GetParam())};
};

TEST_P(ThreadPoolTest, RunsEachTaskOnceOnAThreadOfItsOwn) {
  EXPECT_EQ(pool_.size(), threads_);
  std::mutex mutex;
  std::multiset<int> tasks;
  std::set<std::thread::id> ids;
  pool_.Run([&](int t) {
    std::lock_guard lock(mutex);
    tasks.insert(t);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(tasks.size(), static_cast<size_t>(threads_));
  EXPECT_EQ(ids.size(), static_cast<size_t>(threads_));
  for (int t = 0; t < threads_; ++t) EXPECT_EQ(tasks.count(t), 1u);
  EXPECT_EQ(ids.count(std::this_thread::get_id()), 1u);  // The caller is one of them.
}

// No lock and no atomic: Run() itself publishes what tasks write, to the next Run() and the caller.
TEST_P(ThreadPoolTest, CanBeReusedThousandsOfTimes) {
  constexpr int kRuns = 5000;
  std::vector<int> sums(threads_, 0);
  for (int run = 0; run < kRuns; ++run) {
    pool_.Run([&](int t) { sums[(t + run) % threads_] += 1; });  // Another thread's sum each time.
  }
  for (const int sum : sums) EXPECT_EQ(sum, kRuns);
}

TEST_P(ThreadPoolTest, HelpersSleepAndWakeAgain) {
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // Far longer than they poll.
    std::vector<int> ran(threads_, 0);
    pool_.Run([&](int t) {
      if (t == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ran[t] = 1;
    });
    EXPECT_EQ(ran, std::vector<int>(threads_, 1));
  }
}

TEST_P(ThreadPoolTest, ParallelForCallsExactlyTheParts) {
  for (const int64_t n : {0, 1, 5, 64, 65, 1000}) {
    for (const int64_t grain : {1, 7, 64}) {
      std::mutex mutex;
      std::set<std::pair<int64_t, int64_t>> calls, want;
      pool_.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
        std::lock_guard lock(mutex);
        EXPECT_TRUE(calls.insert({begin, end}).second);
      });
      for (int t = 0; t < threads_; ++t) {
        const auto part = ThreadPool::Part(n, grain, threads_, t);
        if (part.first < part.second) want.insert(part);
      }
      EXPECT_EQ(calls, want) << n << " by " << grain;
    }
  }
}

// The bits of a sum depend on the split; so the split may depend on nothing but its arguments.
TEST_P(ThreadPoolTest, SplitIsTheSameEveryTime) {
  std::vector<float> x(10007);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1 / static_cast<float>(3 * i + 1);
  const auto sum = [&] {
    std::vector<float> part(x.size(), 0);  // By first element.
    pool_.ParallelFor(static_cast<int64_t>(x.size()), 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) part[begin] += x[i];
    });
    float total = 0;
    for (const float p : part) total += p;
    return total;
  };
  const float first = sum();
  for (int i = 0; i < 300; ++i) ASSERT_EQ(sum(), first);
}

TEST_P(ThreadPoolTest, ErrorOfAnyTaskComesBackAfterAllAreDone) {
  for (int failing = 0; failing < threads_; ++failing) {
    std::vector<int> ran(threads_, 0);
    try {
      pool_.Run([&](int t) {
        ran[t] = 1;
        if (t == failing) throw std::runtime_error("task " + std::to_string(t));
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "task " + std::to_string(failing));
    }
    EXPECT_EQ(ran, std::vector<int>(threads_, 1));
    pool_.Run([](int) {});  // The error is forgotten.
  }
}

TEST_P(ThreadPoolTest, FirstErrorInOrderOfTasksWins) {
  for (int i = 0; i < 50; ++i) {
    try {
      pool_.Run([](int t) { throw t; });
      FAIL();
    } catch (const int t) {
      EXPECT_EQ(t, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Bool()));

TEST(ThreadPoolDeathTest, NeedsAThread) { EXPECT_DEATH(ThreadPool(0, false), "broken invariant"); }

TEST(ThreadPool, StartsAndStops) {
  for (int i = 0; i < 200; ++i) ThreadPool pool(1 + i % 4, i % 2 == 0);
}

}  // namespace
}  // namespace fsdp
