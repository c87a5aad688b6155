#include <gtest/gtest.h>
#include <sched.h>

#include <string>
#include <thread>

#include "trainer/core/cores.h"
#include "trainer/core/process_limits.h"

namespace fsdp {
namespace {

TEST(Cores, AreReadAsTheyAreWritten) {
  for (const char* text : {"0", "0-3", "0,2", "1-2,4,8-9,16383", ""}) {
    EXPECT_EQ(CoresText(ParseCores(text)), text);
  }
  EXPECT_EQ(ParseCores("0-1,4\n"), (Cores{0, 1, 4}));
  for (const char* text : {"all", "3-1", "0,", "1,0", "-1", "0--1", "16384", "0-99999999", "0 1"}) {
    EXPECT_EQ(ParseCores(text), Cores()) << text;
  }
  EXPECT_TRUE(Overlap({0, 1, 5}, {2, 5}));
  EXPECT_FALSE(Overlap({0, 1, 5}, {2, 4, 6}));
}

TEST(Cores, StayWithWhatTheThreadStarts) {
  const Cores all = AllowedCores();
  ASSERT_FALSE(all.empty());
  std::thread([&] {
    ASSERT_TRUE(StayOn({all.back()}));
    std::thread([&] { EXPECT_EQ(AllowedCores(), Cores{all.back()}); }).join();
    EXPECT_FALSE(StayOn({}));
  }).join();
  EXPECT_EQ(AllowedCores(), all);
}

TEST(AvailableCores, AreThoseThatTheThreadIsLeft) {
  const MemoryLimits nowhere("/nowhere");  // Without the quota of where the test runs.
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(AvailableCores(nowhere), CPU_COUNT(&all));
  cpu_set_t some;
  CPU_ZERO(&some);
  for (int cpu = 0, left = 2; cpu < CPU_SETSIZE && left > 0; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &some);
    --left;
    ASSERT_EQ(sched_setaffinity(0, sizeof(some), &some), 0);
    EXPECT_EQ(AvailableCores(nowhere), CPU_COUNT(&some));
  }
}

}  // namespace
}  // namespace fsdp
