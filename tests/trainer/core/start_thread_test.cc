#include "trainer/core/start_thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

TEST(StartThread, DoesTheWork) {
  int done = 0;
  StartThread("a thread", [&] { ++done; }).join();
  StartThread<std::jthread>("a thread", [&] { ++done; });
  EXPECT_EQ(done, 2);
}

void Limit(int resource, rlim_t most) {
  const rlimit limit{most, most};
  if (setrlimit(resource, &limit) != 0) _exit(99);
}

// Runs in a process of its own, since no limit can be taken back: ends with the error's code and
// words.
[[noreturn]] void StartUnder(const std::function<void()>& limits) {
  try {
    limits();
    StartThread("a thread that tests", [] {}).join();
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    _exit(static_cast<int>(error.code()));
  }
  _exit(0);
}

TEST(StartThreadDeathTest, SaysWhichLimitLeavesNoRoomForAStack) {
  EXPECT_EXIT(
      StartUnder([] { Limit(RLIMIT_AS, 1 << 20); }), ::testing::ExitedWithCode(3),
      "^cannot start a thread that tests: a thread takes .* of addresses with its stack, and 0 B "
      "are left \\(ulimit -v\\): raise that limit, or lower ulimit -s or run.threads$");
  EXPECT_EXIT(StartUnder([] { Limit(RLIMIT_DATA, 1 << 20); }), ::testing::ExitedWithCode(3),
              " are left \\(ulimit -d\\): ");
}

// The limit is not root's, so the error is made.
TEST(StartThreadDeathTest, SaysThatThereMayBeNoMoreThreads) {
  EXPECT_EXIT(
      StartUnder([] {
        Limit(RLIMIT_NPROC, 7);
        ThrowNoThread("a thread", std::system_error(EAGAIN, std::generic_category()));
      }),
      ::testing::ExitedWithCode(1),
      "^cannot start a thread: Resource temporarily unavailable: a user may have 7 processes and "
      "threads \\(ulimit -u\\), and a control group pids.max of them: ");
}

}  // namespace
}  // namespace fsdp
