// Rank 0's output while it trains: a line per logged step, and on a terminal a live bar below.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_CONSOLE_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_CONSOLE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>

#include "trainer/observe/metrics.h"

namespace fsdp {

struct ConsoleOptions {
  bool enabled = true;    // False on all ranks but one: nothing is printed.
  bool terminal = false;  // A bar, redrawn in place.
  // The terminal is a launcher's, which keeps the bar below all lines: it is a line that begins
  // with kBarMark (core/terminal.h). Lines have no colours then, for they go to its log files, too.
  bool launched = false;
  bool colours = false;
  bool utf8 = false;             // The bar may be drawn with more than ASCII.
  std::function<int()> width{};  // Columns of the terminal now; null: 80.
  // Gets every line that is printed, without colours: for a log. Null: nobody.
  std::function<void(std::string_view)> copy{};
  // Seconds, from any beginning: the bar is drawn at most ten times a second. Null: always.
  std::function<double()> clock{};
};

// For a file descriptor: terminal as IsTerminal() says, or where `launch` has one; colours on a
// terminal unless NO_COLOR is set and not empty (no-color.org); UTF-8 if that is the character set
// of LC_ALL, LC_CTYPE or LANG, the first that is set. `width` asks the terminal each time, so that
// a changed window needs no signal handler.
ConsoleOptions DetectConsole(int fd, int rank);

// "step  20/1000  loss 2.3456  |g| 0.812  lr 3.00e-04  123 ms  16.6k tok/s  MFU 41.2 %  1.20 GiB
//  2m05s left", on one line. `time_left_s` < 0: unknown.
// 0, too, is left out.
std::string FormatStep(const StepRecord& record, int64_t total_steps, double time_left_s);

// `losses`, oldest first, in up to eight cells: "▇▆▅▄▃▂▁▁", or "^=-.___" in ASCII.
// Each cell is a mean; empty for fewer than two values. Values that are not finite are left out.
std::string Trend(const std::deque<double>& losses, bool utf8);

// Printed text moves no cursor, whatever names and samples hold: Printable() of utf8.h. Line()
// and Warning() are for any thread, all else for one. The stream must outlive the console. While a
// bar is shown, all other writers to the terminal must go by way of Line() or Above(), or they tear
// the bar.
class Console {
 public:
  Console(std::ostream& out, const ConsoleOptions& options) : out_(out), options_(options) {}
  ~Console();  // Takes the bar away.
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void Step(const StepRecord& record, int64_t total_steps, double time_left_s);
  void Eval(const EvalRecord& record);
  void Checkpoint(const CheckpointRecord& record);
  void Line(std::string_view text);     // Anything else; may hold several lines.
  void Warning(std::string_view text);  // "warning: ...".
  // Takes the bar away while `write` writes whole lines to the same terminal by another way.
  void Above(const std::function<void()>& write);

  // Moves the bar, which stays below all lines: step, bar, loss and its trend, and from the last
  // Step() tokens/s and memory, then the time left; as much of it as the terminal is wide. Nothing
  // where there is no terminal.
  void Progress(int64_t step, int64_t total_steps, double loss, double time_left_s);

 private:
  enum class Colour { kNone, kBold, kGreen, kYellow };
  void Print(Colour colour, std::string_view text);
  std::string Bar() const;
  std::string Erase() const;  // The text that takes the bar away.
  int Width() const { return options_.width ? options_.width() : 80; }

  std::ostream& out_;
  ConsoleOptions options_;
  std::mutex mutex_;  // Held while text is written; guards bar_ and now_.
  std::string bar_;   // As shown now; empty: none.
  double drawn_at_ = 0;

  struct {
    int64_t step = 0, total = 0;
    double time_left_s = -1;
    std::deque<double> losses;
    std::string rate{};  // 0: none yet.
    int64_t memory = 0;
  } now_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_CONSOLE_H_
