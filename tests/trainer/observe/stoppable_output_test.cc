#include "trainer/observe/stoppable_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iostream>
#include <string>
#include <thread>

namespace fsdp {
namespace {

using namespace std::chrono_literals;

struct Ends {
  explicit Ends(int read = -1, int write = -1) : read(read), write(write) {}
  UniqueFd read, write;
};

// A pipe of little room.
Ends Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[1], F_SETPIPE_SZ, 4096) != 4096) return Ends();
  return Ends(ends[0], ends[1]);
}

// A line's end is one byte there, too.
Ends Terminal() {
  int master = -1, slave = -1;
  termios raw;
  if (openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) return Ends();
  if (tcgetattr(slave, &raw) != 0) return Ends();
  cfmakeraw(&raw);
  if (tcsetattr(slave, TCSANOW, &raw) != 0) return Ends();
  return Ends(master, slave);
}

// Nobody can open it a second time.
Ends Sockets() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return Ends();
  return Ends(ends[0], ends[1]);
}

struct Kind {
  const char* name;
  Ends (*make)();
};

class StoppableOutputTest : public ::testing::TestWithParam<Kind> {
 protected:
  StoppableOutputTest() : ends_(GetParam().make()) { signal(SIGPIPE, SIG_IGN); }
  void SetUp() override { ASSERT_TRUE(ends_.write.open()); }

  std::string ReadAll(size_t bytes) const {
    std::string all;
    char some[1000];
    while (all.size() < bytes) {
      const ssize_t n = read(ends_.read.get(), some, sizeof(some));
      if (n <= 0) break;
      all.append(some, static_cast<size_t>(n));
    }
    return all;
  }

  Ends ends_;
  std::atomic<bool> stop_{false};
};

std::string Lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) lines += "line " + std::to_string(i) + " of many\n";
  return lines;
}

TEST_P(StoppableOutputTest, LosesNothingOfWhatAReaderIsLateFor) {
  const std::string lines = Lines(20000);
  std::string got;
  std::thread reader([&] {
    std::this_thread::sleep_for(300ms);  // Longer than the patience, which nobody needs.
    got = ReadAll(lines.size());
  });
  {
    StoppableOutput output(
        ends_.write.get(), [this] { return stop_.load(); }, 1ms);
    std::ostream stream(&output);
    for (size_t at = 0; at < lines.size(); at += 97) {
      stream << lines.substr(at, 97) << std::flush;
    }
    EXPECT_TRUE(stream.good());
    EXPECT_EQ(output.error(), 0);
  }
  reader.join();
  EXPECT_EQ(got, lines);
}

TEST_P(StoppableOutputTest, AStopEndsTheWaitForAReader) {
  StoppableOutput output(
      ends_.write.get(), [this] { return stop_.load(); }, 50ms);
  std::ostream stream(&output);
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    while (stream.good()) stream << Lines(20) << std::flush;
    ended = true;
  });
  std::this_thread::sleep_for(300ms);
  EXPECT_FALSE(ended);
  stop_ = true;
  writer.join();
  EXPECT_EQ(output.error(), EAGAIN);
  // Nor does anybody wait again; and what had been taken is there, from its first byte on.
  stream.clear();
  stream << "more" << std::flush;
  EXPECT_FALSE(stream.good());
  const std::string begin = Lines(20);
  EXPECT_EQ(ReadAll(begin.size()).substr(0, begin.size()), begin);
}

TEST_P(StoppableOutputTest, AReaderInTimeGetsWhatIsSaidBehindAStop) {
  stop_ = true;
  const std::string lines = Lines(2000);
  std::string got;
  std::thread reader([&] {
    std::this_thread::sleep_for(50ms);
    got = ReadAll(lines.size());
  });
  {
    StoppableOutput output(
        ends_.write.get(), [this] { return stop_.load(); }, 1h);
    const StreamInto into(std::cout, output);
    std::cout << lines;
  }
  reader.join();
  EXPECT_EQ(got, lines);
  std::cout << "this test's own again" << std::endl;
}

INSTANTIATE_TEST_SUITE_P(Ends, StoppableOutputTest,
                         ::testing::Values(Kind{"Pipe", Pipe}, Kind{"Terminal", Terminal},
                                           Kind{"Sockets", Sockets}),
                         [](const auto& info) { return info.param.name; });

// As much as a pipe takes of a stream that blocks: its reader may come when the run has ended.
TEST(StoppableOutput, FillsAPipeBeforeItWaits) {
  const Ends ends = Pipe();
  ASSERT_TRUE(ends.write.open());
  StoppableOutput output(
      ends.write.get(), [] { return true; }, 0ms);
  std::ostream stream(&output);
  for (int i = 0; i < 64; ++i) stream << std::string(64, 'a') << std::flush;
  EXPECT_TRUE(stream.good());
  stream << "a" << std::flush;
  EXPECT_FALSE(stream.good());
}

TEST(StoppableOutput, SaysWhyItCannotBeWritten) {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  StoppableOutput output(full.get(), [] { return false; });
  std::ostream stream(&output);
  stream << "text";
  EXPECT_TRUE(stream.good());
  stream << std::flush;
  EXPECT_FALSE(stream.good());
  EXPECT_EQ(output.error(), ENOSPC);
}

}  // namespace
}  // namespace fsdp
