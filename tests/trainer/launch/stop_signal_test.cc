#include "trainer/launch/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace fsdp {
namespace {

constexpr std::chrono::milliseconds kNever = std::chrono::hours(1);

TEST(StopSignalTest, NothingIsRequestedAtFirst) {
  StopSignal signals;
  EXPECT_FALSE(signals.stop_requested());
  EXPECT_EQ(signals.signal(), 0);
  EXPECT_FALSE(signals.TakeCheckpointRequest());
  EXPECT_FALSE(signals.TakeReportRequest());
}

TEST(StopSignalTest, TheFirstStopCountsAndARepeatIsTheSame) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    StopSignal signals(kNever);
    raise(number);
    EXPECT_TRUE(signals.stop_requested());
    EXPECT_EQ(signals.signal(), number);
    raise(SIGTERM);
    raise(SIGINT);
    EXPECT_TRUE(signals.stop_requested());
    EXPECT_EQ(signals.signal(), number);
  }
}

TEST(StopSignalTest, AnIgnoredHangUpStaysIgnored) {
  const auto previous = signal(SIGHUP, SIG_IGN);
  {
    StopSignal signals;
    raise(SIGHUP);
    EXPECT_FALSE(signals.stop_requested());
  }
  signal(SIGHUP, previous);
}

TEST(StopSignalTest, RequestsAreTakenOnce) {
  StopSignal signals;
  raise(SIGUSR1);
  raise(SIGUSR1);
  EXPECT_TRUE(signals.TakeCheckpointRequest());
  EXPECT_FALSE(signals.TakeCheckpointRequest());
  EXPECT_FALSE(signals.TakeReportRequest());
  raise(SIGUSR2);
  EXPECT_FALSE(signals.TakeCheckpointRequest());
  EXPECT_TRUE(signals.TakeReportRequest());
  EXPECT_FALSE(signals.TakeReportRequest());
  EXPECT_FALSE(signals.stop_requested());
}

TEST(StopSignalTest, TheFirstRankThatLeftIsKept) {
  StopSignal signals;
  EXPECT_FALSE(signals.rank_left());
  raise(SIGURG);  // From nobody who knows.
  EXPECT_FALSE(signals.rank_left());
  TellRankLeft(getpid(), {0, 1});
  TellRankLeft(getpid(), {7, 75});
  ASSERT_TRUE(signals.rank_left());
  EXPECT_EQ(signals.rank_left()->rank, 0);
  EXPECT_EQ(signals.rank_left()->code, 1);
  EXPECT_FALSE(signals.stop_requested());
}

// A program without handlers does not end by it, and one that holds its signals hears of it.
TEST(StopSignalTest, ARankThatLeftIsHeardOfLater) {
  TellRankLeft(getpid(), {2, 143});
  HoldStopSignals();
  TellRankLeft(getpid(), {(1 << 20) - 1, 255});
  StopSignal signals;
  ASSERT_TRUE(signals.rank_left());
  EXPECT_EQ(signals.rank_left()->rank, (1 << 20) - 1);
  EXPECT_EQ(signals.rank_left()->code, 255);
}

TEST(StopSignalTest, HandlersLeaveErrnoAlone) {
  StopSignal signals;
  errno = 77;
  raise(SIGTERM);
  EXPECT_EQ(errno, 77);
}

TEST(StopSignalTest, WhatWasThereComesBack) {
  static int caught = 0;
  const auto previous = signal(SIGUSR1, [](int number) { caught = number; });
  {
    StopSignal signals;
    raise(SIGUSR1);
    EXPECT_TRUE(signals.TakeCheckpointRequest());
  }
  EXPECT_EQ(caught, 0);
  raise(SIGUSR1);
  EXPECT_EQ(caught, SIGUSR1);
  signal(SIGUSR1, previous);
  StopSignal again;  // Starts from nothing.
  EXPECT_FALSE(again.TakeCheckpointRequest());
}

TEST(StopSignalTest, OneAtATime) {
  StopSignal signals;
  EXPECT_THROW(StopSignal(), std::logic_error);
  raise(SIGUSR1);  // The one that threw has not touched the other.
  EXPECT_TRUE(signals.TakeCheckpointRequest());
}

// Sends `second` in a process that has had `first` longer ago than `repeat`. `last_words`: their
// directory; empty: none.
void StopTwice(int first, int second, const std::string& last_words) {
  StopSignal signals(std::chrono::milliseconds(1));
  if (!last_words.empty()) signals.SetLastWords(last_words, "there is none");
  raise(first);
  if (!signals.stop_requested()) _exit(1);
  usleep(5000);
  raise(second);
  _exit(2);
}

// With the last words, on stdout; here that is stderr's file.
TEST(StopSignalDeathTest, ALaterSecondOneEndsTheProcess) {
  const std::string directory = ::testing::TempDir() + "/checkpoints\x1b";
  std::filesystem::create_directories(directory);
  const auto end = [&](int first, int second, bool last_words) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    StopTwice(first, second, last_words ? directory : "");
  };
  const ::testing::ExitedWithCode stopped(75);
  EXPECT_EXIT(end(SIGTERM, SIGTERM, false), stopped, "^$");
  EXPECT_EXIT(end(SIGINT, SIGTERM, true), stopped, "^ended at once: there is none\n$");
  std::ofstream(directory + "/latest") << "step_7";
  EXPECT_EXIT(end(SIGTERM, SIGINT, true), stopped,
              "^ended at once: the run can go on from .*/checkpoints.x1b/step_7\n$");
}

}  // namespace
}  // namespace fsdp
