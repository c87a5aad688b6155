#include "trainer/comm/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace fsdp {
namespace {

using Outcome = Gate::Outcome;
using std::chrono::seconds;

// More threads than cores and than spins: every missed wake-up would show as a timeout.
TEST(GateTest, LosesNoWakeUp) {
  for (const int spins : {0, 1, 500}) {
    constexpr int kThreads = 6, kRounds = 3000;
    Gate gate;
    std::atomic<int> arrived{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int round = 1; round <= kRounds; ++round) {
          ++arrived;
          Gate::Ticket ticket;
          Outcome outcome = gate.Arrive(kThreads, false, &ticket);
          if (outcome == Outcome::kWaiting) outcome = gate.Wait(ticket, spins, seconds(60));
          if (outcome != Outcome::kPassed || arrived < round * kThreads) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << spins << " spins";
  }
}

TEST(GateTest, AnAbortBeforeTheLastArrivalLetsNobodyPass) {
  Gate gate;
  Gate::Ticket first, second;
  ASSERT_EQ(gate.Arrive(2, false, &first), Outcome::kWaiting);
  EXPECT_EQ(gate.Wait(first, 10, seconds(0)), Outcome::kWaiting);
  EXPECT_EQ(gate.Abort(&first), Outcome::kAborted);
  EXPECT_EQ(gate.Wait(first, 0, seconds(60)), Outcome::kAborted);
  EXPECT_EQ(gate.Arrive(2, false, &second), Outcome::kAborted);
  EXPECT_TRUE(gate.aborted());
}

TEST(GateTest, AnAbortAfterTheLastArrivalLetsEverybodyPass) {
  Gate gate;
  Gate::Ticket first, second;
  ASSERT_EQ(gate.Arrive(2, false, &first), Outcome::kWaiting);
  ASSERT_EQ(gate.Arrive(2, false, &second), Outcome::kPassed);
  EXPECT_EQ(gate.Abort(&first), Outcome::kPassed);
  EXPECT_EQ(gate.Wait(first, 0, seconds(60)), Outcome::kPassed);
  EXPECT_EQ(gate.Arrive(2, false, &second), Outcome::kAborted);  // The next one.
}

TEST(GateTest, ArrivalsEvenIfAbortedStillMeet) {
  Gate gate;
  gate.Abort();
  Gate::Ticket first, second;
  ASSERT_EQ(gate.Arrive(2, true, &first), Outcome::kWaiting);
  EXPECT_EQ(gate.Wait(first, 0, seconds(0)), Outcome::kWaiting);
  ASSERT_EQ(gate.Arrive(2, true, &second), Outcome::kPassed);
  EXPECT_EQ(gate.Wait(first, 0, seconds(60)), Outcome::kPassed);
  EXPECT_TRUE(gate.aborted());
}

TEST(GateTest, EpochsWrapAround) {
  Gate gate;
  Gate::Ticket ticket;
  for (int i = 0; i < (1 << 21) + 5; ++i) {  // One more than all epochs there are.
    ASSERT_EQ(gate.Arrive(1, false, &ticket), Outcome::kPassed);
  }
  EXPECT_FALSE(gate.aborted());
}

}  // namespace
}  // namespace fsdp
