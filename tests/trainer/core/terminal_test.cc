#include "trainer/core/terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>

namespace fsdp {
namespace {

TEST(Terminal, IsOneThatMovesItsCursor) {
  int terminal = -1, other = -1;
  ASSERT_EQ(::openpty(&terminal, &other, nullptr, nullptr, nullptr), 0);
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::setenv("TERM", "xterm", 1);
  EXPECT_TRUE(IsTerminal(other));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(IsTerminal(ends[1]));
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(IsTerminal(other));
  ::unsetenv("TERM");
  EXPECT_FALSE(IsTerminal(other));
  ::setenv("TERM", "xterm", 1);
  ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  EXPECT_FALSE(IsTerminal(other));
  for (const int fd : {terminal, other, ends[0], ends[1]}) ::close(fd);
}

TEST(Terminal, AWrappedBarIsErasedWhole) {
  EXPECT_EQ(EraseBar("", 80), "");
  EXPECT_EQ(EraseBar("bar", 80), "\r\033[K");
  EXPECT_EQ(EraseBar("bar", 3), "\r\033[K");
  EXPECT_EQ(EraseBar("bars", 3), "\r\033[1A\033[J");
  EXPECT_EQ(EraseBar("\033[32m▕██\033[0m", 3), "\r\033[K");
  EXPECT_EQ(EraseBar("seven..", 3), "\r\033[2A\033[J");
}

}  // namespace
}  // namespace fsdp
