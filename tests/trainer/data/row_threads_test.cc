#include "trainer/data/row_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fsdp {
namespace {

TEST(RowThreads, FillEachRowOnce) {
  for (const int threads : {1, 2, 5}) {
    RowThreads rows(threads);
    for (const int64_t n : {0, 1, 2, 5, 37}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(n));
      rows.Fill(n, [&](int64_t row) { ++calls[static_cast<size_t>(row)]; });
      for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1) << threads << ", " << n;
    }
  }
}

// Nobody gets on before all have a row in hands.
TEST(RowThreads, WorkSideBySide) {
  constexpr int kThreads = 3;
  RowThreads rows(kThreads);
  std::barrier<> all(kThreads);
  std::atomic<int> filled{0};
  rows.Fill(2 * kThreads, [&](int64_t) {
    all.arrive_and_wait();
    ++filled;
  });
  EXPECT_EQ(filled, 2 * kThreads);
}

// The first in order, though another has failed before it; and the next call is a fresh one.
TEST(RowThreads, TellWhatTheFirstRowThrows) {
  RowThreads rows(2);
  for (int round = 0; round < 50; ++round) {
    std::atomic<bool> later{false};
    try {
      rows.Fill(9, [&](int64_t row) {
        if (row == 2) {  // While it waits the other thread comes to row 3.
          while (!later) std::this_thread::yield();
        } else if (row == 3) {
          later = true;
        }
        if (row >= 2) throw std::runtime_error("row " + std::to_string(row));
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "row 2");
    }
  }
}

TEST(RowThreads, CallersTakeTurns) {
  RowThreads rows(2);
  std::atomic<int> filled{0};
  const auto fill = [&] {
    for (int i = 0; i < 20; ++i) rows.Fill(10, [&](int64_t) { ++filled; });
  };
  std::thread other(fill);
  fill();
  other.join();
  EXPECT_EQ(filled, 400);
}

}  // namespace
}  // namespace fsdp
