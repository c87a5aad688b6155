#include "trainer/comm/patience.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace fsdp {
namespace {

using std::chrono::milliseconds;

// A process that is stopped asks nobody: what has passed then counts for a second, and no more.
TEST(Patience, CountsTimeInWhichNobodyAsksForASecond) {
  Patience patience(milliseconds(1100));
  std::this_thread::sleep_for(milliseconds(1300));
  EXPECT_FALSE(patience.over());
  int questions = 0;
  while (!patience.over()) {
    ++questions;
    std::this_thread::sleep_for(patience.tick());
  }
  EXPECT_GT(questions, 0);
  EXPECT_EQ(patience.tick(), Patience::Clock::duration::zero());
}

}  // namespace
}  // namespace fsdp
