#include "trainer/runtime/cuda/failures.h"

#include <gtest/gtest.h>

#include <string>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

std::exception_ptr Comm(const char* what) { return std::make_exception_ptr(CommError(what)); }

std::string What(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Failures, NothingHasFailed) {
  Failures failures;
  EXPECT_EQ(failures.AddStream(), 0);
  EXPECT_EQ(failures.AddStream(), 1);
  EXPECT_FALSE(failures.Find(0, {7, 9}));
  EXPECT_FALSE(failures.device_error());
  EXPECT_FALSE(failures.Position(0));
}

TEST(Failures, WhatComesBeforeHasNotFailed) {
  Failures failures;
  failures.AddStream();
  failures.AddStream();
  failures.Fail(0, 5, Comm("a"), {"op", 3});
  for (int stream : {0, 1}) {
    EXPECT_EQ(What(failures.Find(stream, {4, 9})), "") << stream;
    EXPECT_EQ(What(failures.Find(stream, {5})), "a") << stream;
    EXPECT_EQ(What(failures.Find(stream, {6, 9})), "a") << stream;
    EXPECT_EQ(What(failures.Find(stream, {})), "") << stream;
  }
  ASSERT_TRUE(failures.Position(0));
  EXPECT_STREQ(failures.Position(0)->operation, "op");
  EXPECT_EQ(failures.Position(0)->tag, 3u);
  EXPECT_FALSE(failures.Position(1));
}

// Threads of two streams may report in any order.
TEST(Failures, FirstOfAStreamCounts) {
  Failures failures;
  failures.AddStream();
  failures.Fail(0, 5, Comm("later"), {});
  failures.Fail(0, 3, Comm("first"), {});
  failures.Fail(0, 4, Comm("between"), {});
  EXPECT_EQ(What(failures.Find(0, {9})), "first");
  EXPECT_EQ(What(failures.Find(0, {3})), "first");
  EXPECT_EQ(What(failures.Find(0, {2})), "");
}

TEST(Failures, OwnErrorThenTheOneThatWasEnqueuedFirst) {
  Failures failures;
  for (int s = 0; s < 4; ++s) failures.AddStream();
  failures.Fail(0, 2, Comm("a"), {});
  failures.Fail(1, 1, Comm("b"), {});
  failures.Fail(2, 7, Comm("c"), {});
  EXPECT_EQ(What(failures.Find(2, {9, 9, 9})), "c");
  EXPECT_EQ(What(failures.Find(2, {9, 9, 6})), "b");
  EXPECT_EQ(What(failures.Find(3, {9, 9, 9})), "b");
  EXPECT_EQ(What(failures.Find(3, {9, 0, 9})), "a");
}

TEST(Failures, DeviceKeepsItsFirstError) {
  Failures failures;
  failures.AddStream();
  failures.FailDevice(Comm("fault"));
  failures.FailDevice(Comm("echo"));
  EXPECT_TRUE(failures.device_failed());
  EXPECT_EQ(What(failures.device_error()), "fault");
  EXPECT_FALSE(failures.Find(0, {9}));
}

TEST(Failures, MergedClockHasTheLaterOfBoth) {
  VectorClock clock = {3, 0, 5};
  Merge({1, 2}, clock);
  EXPECT_EQ(clock, (VectorClock{3, 2, 5}));
  Merge({0, 0, 0, 4}, clock);
  EXPECT_EQ(clock, (VectorClock{3, 2, 5, 4}));
}

}  // namespace
}  // namespace fsdp
