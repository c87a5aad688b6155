// A process that leaves a thread behind ends all the same, with its code and its last words.
#include "trainer/core/left_behind.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace fsdp {
namespace {

// Ends a process as main()'s return does: static objects and atexit() functions end, too.
[[noreturn]] void End(double patience_s, bool stuck) {
  std::atexit([] { std::fputs("destroyed\n", stderr); });
  EndWithin(patience_s, [stuck] {
    while (stuck) pause();
  });
  std::fputs("last words\n", stdout);  // Not a line of the file descriptor's yet.
  std::exit(ExitBeside(6));
}

using LeftBehindDeathTest = ::testing::Test;

TEST(LeftBehindDeathTest, EndsAsAnyOtherWhereNothingIsStuck) {
  EXPECT_EXIT(End(60, false), ::testing::ExitedWithCode(6), "destroyed");
}

TEST(LeftBehindDeathTest, DestroysNothingBesideAThread) {
  EXPECT_EXIT(
      {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        End(0.01, true);
      },
      ::testing::ExitedWithCode(6), "^last words\n$");
}

}  // namespace
}  // namespace fsdp
