#include <gtest/gtest.h>
#include <sched.h>

#include "trainer/core/process_limits.h"

namespace fsdp {
namespace {

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
