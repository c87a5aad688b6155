#include "trainer/core/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "tests/testing/kept_environment.h"

namespace fsdp {
namespace {

TEST(Terminal, IsOneThatMovesItsCursor) {
  const testing::KeptEnvironment kept;
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

// `other` is stderr while the job runs. Returns what arrived at the terminal. A terminal gets its
// text a little later, so a zero is written last, and awaited.
std::string WrittenTo(int terminal, int other, const std::function<void()>& job) {
  const int before = ::dup(STDERR_FILENO);
  ::dup2(other, STDERR_FILENO);
  job();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::string text;
  if (::write(other, "", 1) != 1) return "the zero cannot be written";
  for (char c; ::read(terminal, &c, 1) == 1 && c != '\0';) text += c;
  return text;
}

TEST(ProgressLine, IsDrawnOverItselfAndErased) {
  const testing::KeptEnvironment kept;
  int terminal = -1, other = -1;
  ASSERT_EQ(::openpty(&terminal, &other, nullptr, nullptr, nullptr), 0);
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::setenv("TERM", "xterm", 1);
  const auto job = [](double most_s) {
    ProgressLine line;
    while (line.Seconds() < most_s && !line.IsDue()) ::usleep(1000);
    line.Show("1 of 2");
  };
  EXPECT_EQ(WrittenTo(terminal, other, [&] { job(60); }), "1 of 2\r\033[K");
  ::setenv("TERM", "dumb", 1);  // As a file, which gets a line after ten seconds.
  EXPECT_EQ(WrittenTo(terminal, other, [&] { job(0.3); }), "");
  for (const int fd : {terminal, other}) ::close(fd);
}

TEST(ProgressLine, SaysWhatAJobDoesThatSaysNothing) {
  const testing::KeptEnvironment kept;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = WrittenTo(ends[0], ends[1], [] {
    ProgressLine quick("doing what is done at once");
    quick.End();
    ProgressLine line("reading", /*first_s=*/0.1);
    line.Do("planning");
    ::usleep(300'000);
  });
  EXPECT_THAT(text, ::testing::MatchesRegex("planning, [0-9.]+ m?s so far\n.*"));
  for (const int fd : ends) ::close(fd);
}

}  // namespace
}  // namespace fsdp
