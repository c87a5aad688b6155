#include "trainer/observe/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/testing/kept_environment.h"

namespace fsdp {
namespace {

const StepRecord kStep{.step = 20,
                       .loss = 2.5,
                       .loss_mean = 2.345678,
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

ConsoleOptions Terminal(int width, bool utf8 = false) {
  ConsoleOptions options;
  options.terminal = true;
  options.utf8 = utf8;
  options.width = [width] { return width; };
  return options;
}

// The screen of a terminal: enough of ECMA-48 for a console, with lines that wrap and reflow.
class Screen {
 public:
  explicit Screen(int width) : width_(width) {}

  void Write(std::string_view bytes) {
    pending_ += bytes;
    while (!pending_.empty()) {
      const size_t taken = Take(pending_);
      if (taken == 0) return;  // The rest of a sequence is still to come.
      pending_.erase(0, taken);
    }
  }

  // As xterm and its kin do: long lines are wrapped again, the cursor stays where it was in its.
  void Resize(int width) { width_ = width; }

  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (const Cells& cells : lines_) {
      std::string text;
      for (const std::string& cell : cells) text += cell;
      lines.push_back(text);
    }
    return lines;
  }
  std::string Line(size_t i) const {  // A byte for each column.
    return i < lines_.size() ? std::string(lines_[i].size(), '?') : "";
  }
  static int Columns(const std::string& text) {
    int columns = 0;
    for (const char c : text) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
    return columns;
  }

 private:
  using Cells = std::vector<std::string>;

  // Rows that a line of the program's takes, and the one the cursor is in.
  int Row() const { return static_cast<int>(column_) / width_; }

  size_t Take(std::string_view s) {
    if (s[0] == '\033') {
      size_t end = 2;
      while (end < s.size() && (std::isdigit(static_cast<unsigned char>(s[end])) != 0)) ++end;
      if (end >= s.size()) return 0;
      const int n = s[1] == '[' && end > 2 ? std::stoi(std::string(s.substr(2, end - 2))) : 0;
      Cells& line = lines_[at_];
      if (s[end] == 'K') {
        // To the end of the row alone.
        const size_t row_end = static_cast<size_t>((Row() + 1) * width_);
        EXPECT_LE(line.size(), row_end) << "a part of a wrapped line is erased";
        line.resize(std::min(line.size(), column_));
      } else if (s[end] == 'J') {
        line.resize(std::min(line.size(), column_));
        lines_.resize(at_ + 1);
      } else if (s[end] == 'A') {
        EXPECT_LE(n, Row()) << "into a line above";
        column_ -= std::min(column_, static_cast<size_t>(n * width_));
      } else {
        EXPECT_EQ(s[end], 'm');
      }
      return end + 1;
    }
    if (s[0] == '\r') {
      // To the beginning of the row, which is that of the line where it is not wrapped.
      column_ =
          static_cast<size_t>(static_cast<int>(std::max<size_t>(column_, 1) - 1) / width_ * width_);
      return 1;
    }
    if (s[0] == '\n') {
      if (++at_ == lines_.size()) lines_.emplace_back();
      column_ = 0;
      return 1;
    }
    size_t length = 1;
    while (length < s.size() && (static_cast<unsigned char>(s[length]) & 0xc0) == 0x80) ++length;
    if ((static_cast<unsigned char>(s[0]) & 0x80) != 0 && length == s.size()) return 0;
    Cells& line = lines_[at_];
    line.resize(std::max(line.size(), column_ + 1), " ");
    line[column_++] = s.substr(0, length);
    return length;
  }

  int width_;
  std::vector<Cells> lines_{1};
  size_t at_ = 0, column_ = 0;
  std::string pending_;
};

TEST(Console, StepLine) {
  EXPECT_EQ(FormatStep(kStep, 1000, 125),
            "step   20/1000  loss 2.3457  |g| 0.812  lr 3.00e-04  123 ms  16.6k tok/s  MFU 41.2 %  "
            "1.00 GiB  2m05s left");
  StepRecord unknown = kStep;
  unknown.mfu.reset();
  EXPECT_EQ(FormatStep(unknown, 20, -1),
            "step 20/20  loss 2.3457  |g| 0.812  lr 3.00e-04  123 ms  16.6k tok/s  1.00 GiB");
  EXPECT_EQ(FormatStep(unknown, 20, 0), FormatStep(unknown, 20, -1));  // Nothing is left.
}

// A step's line comes before the bar hears of the step.
TEST(Console, TheBarNeverGoesBack) {
  for (const bool launched : {false, true}) {
    ConsoleOptions options = Terminal(60);
    options.launched = launched;
    const std::string got = Printed(options, [](Console& console) {
      console.Progress(18, 40, 2, 5);
      console.Progress(19, 40, 2, 5);
      console.Step(kStep, 40, 5);
      console.Progress(20, 40, 2, 5);
    });
    const size_t line = got.find("step 20/40  loss");
    ASSERT_NE(line, std::string::npos);
    EXPECT_EQ(got.find("step 19/40", line), std::string::npos) << got;
    EXPECT_NE(got.find("step 20/40  ["), std::string::npos) << got;
  }
}

TEST(Console, PlainLinesWhereThereIsNoTerminal) {
  const std::string got = Printed({}, [](Console& console) {
    console.Progress(1, 10, 2, 5);
    console.Step(kStep, 20, -1);
    console.Eval({.step = 20, .loss = 1.5});
    console.Eval({.step = 20, .loss = 1.5, .metric = &kAccuracy, .mean = 0.75});
    console.Eval({.step = 20, .loss = 1.5, .metric = &kNormalizedEntropy, .mean = 1});
    console.Eval({.step = 20, .loss = 1.5, .metric = nullptr});
    console.Checkpoint({.step = 20, .path = "c/step_20", .seconds = 0.5, .bytes = 2048});
    console.Warning("slow disk");
    console.Line("a\nb");
  });
  EXPECT_EQ(got, FormatStep(kStep, 20, -1) +
                     "\neval at step 20: loss 1.5000, perplexity 4.482\n"
                     "eval at step 20: loss 1.5000, accuracy 0.75\n"
                     "eval at step 20: loss 1.5000\n"
                     "eval at step 20: loss 1.5000\n"
                     "checkpoint at step 20: c/step_20, 2.00 KiB in 500 ms\n"
                     "warning: slow disk\n"
                     "a\nb\n");
}

TEST(Console, OtherRanksPrintNothing) {
  ConsoleOptions options = Terminal(80);
  options.enabled = false;
  options.colours = true;
  EXPECT_EQ(Printed(options,
                    [](Console& console) {
                      console.Step(kStep, 20, -1);
                      console.Warning("x");
                      console.Progress(1, 2, 3, 4);
                    }),
            "");
}

TEST(Console, BarHoldsWhatThereIsRoomFor) {
  const auto bar = [](int width, bool utf8) {
    std::string got = Printed(Terminal(width, utf8), [](Console& console) {
      StepRecord first = kStep;
      first.step = 1;
      console.Step(first, 20, -1);
      for (int step = 1; step <= 10; ++step) console.Progress(step, 20, 3 - 0.1 * step, 65);
    });
    got = got.substr(0, got.rfind('\r'));  // Taken away at the end.
    return got.substr(got.rfind('K') + 1);
  };
  EXPECT_EQ(bar(120, false),
            "step 10/20  [####################....................]  loss 2.0000  ^^=--.__  "
            "16.6k tok/s  1.00 GiB  1m05s left");
  EXPECT_EQ(bar(120, true),
            "step 10/20  ▕████████████████████░░░░░░░░░░░░░░░░░░░░▏  loss 2.0000  ██▇▅▄▃▂▁  "
            "16.6k tok/s  1.00 GiB  1m05s left");
  EXPECT_EQ(bar(70, false),
            "step 10/20  [########.........]  loss 2.0000  16.6k tok/s  1m05s left");
  EXPECT_EQ(bar(60, false), "step 10/20  [#####.....]  loss 2.0000  ^^=--.__  1m05s left");
  EXPECT_EQ(bar(40, false), "step 10/20  loss 2.0000  1m05s left");
  EXPECT_EQ(bar(30, false), "step 10/20  1m05s left");
  EXPECT_EQ(bar(20, false), "step 10/20");
  EXPECT_EQ(bar(8, false), "step 10");
}

// The fall of the first steps would make a flat line of everything since.
TEST(Console, TheTrendIsOfTheLast160Losses) {
  const auto trend = [](int high, int low) {
    const std::string got = Printed(Terminal(120, false), [&](Console& console) {
      int step = 0;
      for (int i = 0; i < high; ++i) console.Progress(++step, 1000, 9, -1);
      for (int i = 0; i < low; ++i) console.Progress(++step, 1000, 1 + i / 80 * 0.5, -1);
    });
    return got.substr(got.rfind("loss"), std::string("loss 1.5000  ____^^^^").size());
  };
  EXPECT_EQ(trend(20, 160), "loss 1.5000  ____^^^^");
  EXPECT_EQ(trend(20, 140), "loss 1.5000  ^_______");
}

TEST(Console, BarFitsAnyWidth) {
  for (const bool utf8 : {false, true}) {
    for (int width = 1; width < 200; ++width) {
      const std::string got = Printed(Terminal(width, utf8), [](Console& console) {
        console.Step(kStep, 7, -1);
        console.Progress(2, 7, 2.5, 1000);
        console.Progress(3, 7, 1.5, 1000);
      });
      Screen screen(width + 200);  // The line above may be longer.
      screen.Write(got.substr(0, got.rfind('\r')));
      EXPECT_LE(screen.Line(1).size(), static_cast<size_t>(width - 1));
    }
  }
}

TEST(Console, BarIsDrawnTenTimesASecond) {
  double now = 5;
  ConsoleOptions options = Terminal(60);
  options.clock = [&] { return now; };
  const std::string got = Printed(options, [&](Console& console) {
    for (int step = 1; step <= 1000; ++step, now += 0.001) console.Progress(step, 1000, 2, 1);
  });
  int drawn = 0;
  for (size_t at = 0; (at = got.find("step ", at)) != std::string::npos; ++at) ++drawn;
  EXPECT_GE(drawn, 10);
  EXPECT_LE(drawn, 12);
  EXPECT_NE(got.find("step 1000/1000"), std::string::npos);  // The last one always.
}

TEST(Trend, IsTheShapeOfTheLosses) {
  const auto of = [](std::initializer_list<double> losses, bool utf8 = false) {
    return Trend(losses, utf8);
  };
  EXPECT_EQ(of({}), "");
  EXPECT_EQ(of({3}), "");
  EXPECT_EQ(of({3, NAN}), "");
  EXPECT_EQ(of({3, NAN, 2}), "^_");
  EXPECT_EQ(of({2, 2, 2}), "___");
  EXPECT_EQ(of({1, 2, 3, 4, 5, 6, 7, 8}, true), "▁▂▃▄▅▆▇█");
  std::deque<double> many;
  for (int i = 0; i < 160; ++i) many.push_back(-i % 20 * 1e-3 - i / 20);  // Noise on stairs.
  EXPECT_EQ(Trend(many, true), "█▇▆▅▄▃▂▁");
}

// A terminal of the system around the console, and a screen of ours that shows what comes out.
class ConsoleOnTerminal : public ::testing::Test {
 private:
  const testing::KeptEnvironment kept_;

 protected:
  void SetUp() override {
    Resize(90);
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "", 1);
    ::setenv("LC_ALL", "C.UTF-8", 1);
    options_ = DetectConsole(other_, 0);
    options_.clock = {};
  }
  ConsoleOnTerminal() {
    EXPECT_EQ(::openpty(&terminal_, &other_, nullptr, nullptr, nullptr), 0);
    ::fcntl(terminal_, F_SETFL, O_NONBLOCK);
    file_.open(::ttyname(other_));
  }
  ~ConsoleOnTerminal() override {
    ::close(terminal_);
    ::close(other_);
  }
  void Resize(int width) {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(width);
    size.ws_row = 24;
    EXPECT_EQ(::ioctl(terminal_, TIOCSWINSZ, &size), 0);
    screen_.Resize(width);
  }
  // Lines of the screen after all that has been written.
  std::vector<std::string> Shown() {
    char buffer[4096];
    for (ssize_t n; (n = ::read(terminal_, buffer, sizeof(buffer))) > 0;) {
      raw_.append(buffer, static_cast<size_t>(n));
      screen_.Write({buffer, static_cast<size_t>(n)});
    }
    return screen_.Lines();
  }
  // The same without the bar, which must be whole and last.
  std::vector<std::string> AboveTheBar() {
    std::vector<std::string> lines = Shown();
    const std::string bar = lines.empty() ? "" : lines.back();
    EXPECT_EQ(bar.find("step "), 0u) << bar;
    EXPECT_NE(bar.find(" left"), std::string::npos) << bar;
    EXPECT_EQ(bar.find("step ", 1), std::string::npos) << bar;
    lines.pop_back();
    return lines;
  }

  int terminal_ = -1, other_ = -1;
  std::ofstream file_;
  Screen screen_{90};
  std::string raw_;
  ConsoleOptions options_;
};

TEST_F(ConsoleOnTerminal, LinesScrollAboveOneBar) {
  std::vector<std::string> want;
  {
    Console console(file_, options_);
    for (int step = 1; step <= 30; ++step) {
      console.Progress(step, 30, 3, 5);
      console.Line("line " + std::to_string(step));
      console.Above([&] { file_ << "other code\n" << std::flush; });
      want.insert(want.end(), {"line " + std::to_string(step), "other code"});
      EXPECT_EQ(AboveTheBar(), want);
    }
    EXPECT_NE(raw_.find("\033[32m█"), std::string::npos);
  }
  want.push_back("");  // Where the bar was.
  EXPECT_EQ(Shown(), want);
}

TEST_F(ConsoleOnTerminal, ANarrowerWindowLeavesNothingBehind) {
  Console console(file_, options_);
  console.Step(kStep, 20, -1);
  console.Progress(1, 20, 3, 5);
  console.Progress(2, 20, 3, 5);
  EXPECT_EQ(Shown().size(), 2u);
  for (const int width : {89, 61, 44, 33, 25, 14, 30, 90}) {
    Resize(width);
    console.Progress(width, 100, 3, 500);
    const std::vector<std::string> lines = Shown();
    // The step's own line is wrapped by the terminal; the bar is one, and the last.
    size_t bars = 0;
    for (const std::string& line : lines) bars += line.find("/100") != std::string::npos ? 1 : 0;
    EXPECT_EQ(bars, 1u) << width;
    EXPECT_NE(lines.back().find("/100"), std::string::npos) << width;
    EXPECT_LT(Screen::Columns(lines.back()), width);
  }
}

TEST_F(ConsoleOnTerminal, NoColour) {
  ::setenv("NO_COLOR", "1", 1);
  options_ = DetectConsole(other_, 0);
  Console console(file_, options_);
  console.Warning("x");
  console.Progress(1, 2, 3, 4);
  Shown();
  EXPECT_NE(raw_.find("step 1/2"), std::string::npos);
  EXPECT_EQ(raw_.find("\033["), std::string::npos) << raw_;
}

TEST_F(ConsoleOnTerminal, ADumbTerminalGetsPlainLines) {
  ::setenv("TERM", "dumb", 1);
  Console console(file_, DetectConsole(other_, 0));
  console.Progress(1, 2, 3, 4);
  console.Warning("x");
  Shown();
  EXPECT_EQ(raw_, "warning: x\r\n");
}

TEST_F(ConsoleOnTerminal, AsciiInALocaleWithoutUtf8) {
  ::setenv("LC_ALL", "C", 1);
  Console console(file_, DetectConsole(other_, 0));
  console.Progress(1, 2, 3, 4);
  console.Progress(2, 2, 2, 4);
  Shown();
  EXPECT_NE(raw_.find("step 2/2"), std::string::npos);
  for (const char c : raw_) EXPECT_LT(static_cast<unsigned char>(c), 128);
}

// A launcher draws it: each bar is a line of its own, and nothing moves a cursor.
TEST(Console, BelowALauncherTheBarIsAMarkedLine) {
  ConsoleOptions options = Terminal(60);
  options.launched = options.colours = true;
  const std::string got = Printed(options, [](Console& console) {
    console.Line("before");
    console.Progress(1, 2, 3.5, -1);
    console.Warning("between");
    console.Above([] {});
    console.Progress(2, 2, 3.5, -1);
  });
  const auto bar = [](int step, const std::string& cells) {
    return "\rstep " + std::to_string(step) + "/2  [\033[32m" + cells + "]  loss 3.5000";
  };
  const std::string half = bar(1, std::string(17, '#') + "\033[0m" + std::string(17, '.'));
  EXPECT_EQ(got.find("before\n" + half + "\nwarning: between\n\rstep 2/2 "), 0u) << got;
  EXPECT_EQ(got.substr(got.size() - 3), "\n\r\n") << got;  // And away.
}

TEST(Console, ColoursEndWhereTheyBegan) {
  ConsoleOptions options = Terminal(80);
  options.colours = true;
  EXPECT_EQ(Printed(options, [](Console& console) { console.Warning("x"); }),
            "\033[33mwarning: x\033[0m\n");
}

TEST(DetectConsole, AsksTheDescriptorAndTheEnvironment) {
  const testing::KeptEnvironment kept;
  int terminal = -1, other = -1;
  winsize size{};
  size.ws_col = 123;
  size.ws_row = 10;
  ASSERT_EQ(::openpty(&terminal, &other, nullptr, nullptr, &size), 0);
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  ConsoleOptions options = DetectConsole(other, 0);
  EXPECT_TRUE(options.enabled && options.terminal && options.colours);
  EXPECT_EQ(options.width(), 123);
  size.ws_col = 45;  // A window that is made smaller.
  ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(options.width(), 45);
  size.ws_col = 0;  // Some do not know.
  ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(options.width(), 80);
  for (const auto& [all, ctype, lang, utf8] :
       std::vector<std::tuple<const char*, const char*, const char*, bool>>{
           {"", "", "en_US.UTF-8", true},
           {"", "C", "en_US.UTF-8", false},
           {"de_DE.utf8", "C", "C", true},
           {"POSIX", "", "en_US.UTF-8", false},
           {"", "", "", false}}) {
    ::setenv("LC_ALL", all, 1);
    ::setenv("LC_CTYPE", ctype, 1);
    ::setenv("LANG", lang, 1);
    EXPECT_EQ(DetectConsole(other, 0).utf8, utf8) << all << ctype << lang;
  }
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
