#include "trainer/observe/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <sstream>

namespace fsdp {
namespace {

const StepRecord kStep{.step = 20,
                       .loss = 2.345678,
                       .grad_norm = 0.8123,
                       .lr = 3e-4,
                       .tokens = 40960,
                       .step_time_s = 0.1234,
                       .tokens_per_s = 16600,
                       .mfu = 0.4123,
                       .memory = {int64_t{1} << 30, int64_t{1} << 30, int64_t{1} << 30}};

std::string Printed(const ConsoleOptions& options, const std::function<void(Console&)>& use) {
  std::ostringstream out;
  {
    Console console(out, options);
    use(console);
  }
  return out.str();
}

TEST(Console, StepLine) {
  EXPECT_EQ(FormatStep(kStep, 1000, 125),
            "step   20/1000  loss 2.3457  |g| 0.812  lr 3.00e-04  123 ms  16.6k tok/s  MFU 41.2 %  "
            "1.00 GiB  2m05s left");
  StepRecord unknown = kStep;
  unknown.mfu.reset();
  EXPECT_EQ(FormatStep(unknown, 20, -1),
            "step 20/20  loss 2.3457  |g| 0.812  lr 3.00e-04  123 ms  16.6k tok/s  1.00 GiB");
}

TEST(Console, PlainLinesWhereThereIsNoTerminal) {
  const std::string got = Printed({}, [](Console& console) {
    console.Progress(1, 10, 5);
    console.Step(kStep, 20, -1);
    console.Eval({.step = 20, .loss = 1.5});
    console.Checkpoint({.step = 20, .path = "c/step_20", .seconds = 0.5, .bytes = 2048});
    console.Skipped({.step = 21, .reason = "gradient not finite"});
    console.Warning("slow disk");
    console.Line("a\nb");
  });
  EXPECT_EQ(got, FormatStep(kStep, 20, -1) +
                     "\neval at step 20: loss 1.5000, perplexity 4.482\n"
                     "checkpoint at step 20: c/step_20, 2.00 KiB in 500 ms\n"
                     "step 21 skipped: gradient not finite\n"
                     "warning: slow disk\n"
                     "a\nb\n");
}

TEST(Console, OtherRanksPrintNothing) {
  const ConsoleOptions options{.enabled = false, .terminal = true, .colours = true};
  EXPECT_EQ(Printed(options,
                    [](Console& console) {
                      console.Step(kStep, 20, -1);
                      console.Warning("x");
                      console.Progress(1, 2, 3);
                    }),
            "");
}

TEST(Console, BarStaysBelowTheLinesAndGoesAway) {
  const ConsoleOptions options{.terminal = true, .colours = false, .width = 40};
  const std::string got = Printed(options, [](Console& console) {
    console.Progress(5, 10, 60);
    console.Progress(5, 10, 60);  // Unchanged: not drawn again.
    console.Line("hello");
    console.Progress(10, 10, 0);
  });
  // As long as fits into 39 columns.
  const std::string half = "[#######.......] step  5/10  1m00s left";
  const std::string full = "[############] step 10/10  0.00 ms left";
  EXPECT_EQ(got, half + "\r\033[Khello\n" + half + "\r\033[K" + full + "\r\033[K");
}

TEST(Console, BarFitsAnyWidth) {
  for (int width = 1; width < 100; ++width) {
    const ConsoleOptions options{.terminal = true, .colours = false, .width = width};
    const std::string got =
        Printed(options, [](Console& console) { console.Progress(3, 7, 1000); });
    EXPECT_LE(got.find('\r') == std::string::npos ? got.size() : got.find('\r'),
              static_cast<size_t>(width - 1));
  }
}

TEST(Console, ColoursEndWhereTheyBegan) {
  const ConsoleOptions options{.terminal = true, .colours = true};
  EXPECT_EQ(Printed(options, [](Console& console) { console.Warning("x"); }),
            "\033[33mwarning: x\033[0m\n");
}

TEST(DetectConsole, AsksTheDescriptorAndTheEnvironment) {
  int terminal = -1, other = -1;
  winsize size{};
  size.ws_col = 123;
  size.ws_row = 10;
  ASSERT_EQ(::openpty(&terminal, &other, nullptr, nullptr, &size), 0);
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  ConsoleOptions options = DetectConsole(other, 0);
  EXPECT_TRUE(options.enabled && options.terminal && options.colours);
  EXPECT_EQ(options.width, 123);
  EXPECT_FALSE(DetectConsole(other, 1).enabled);
  ::setenv("NO_COLOR", "1", 1);
  options = DetectConsole(other, 0);
  EXPECT_TRUE(options.terminal && !options.colours);
  ::setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(DetectConsole(other, 0).colours);
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(DetectConsole(other, 0).terminal);
  ::setenv("TERM", "xterm", 1);
  const int file = ::open("/dev/null", O_WRONLY);
  options = DetectConsole(file, 0);
  EXPECT_TRUE(options.enabled && !options.terminal && !options.colours);
  ::close(file);
  ::close(terminal);
  ::close(other);
}

}  // namespace
}  // namespace fsdp
