// What rank 0 shows while it trains: a line per logged step, and on a terminal a live bar below.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_CONSOLE_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_CONSOLE_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "trainer/observe/metrics.h"

namespace fsdp {

struct ConsoleOptions {
  bool enabled = true;    // False on all ranks but one: nothing is printed.
  bool terminal = false;  // A bar, redrawn in place.
  bool colours = false;
  int width = 80;  // Columns of the terminal.
};

// For a file descriptor: terminal if it is one and TERM is not "dumb"; colours on a terminal unless
// NO_COLOR is set and not empty (no-color.org).
ConsoleOptions DetectConsole(int fd, int rank);

// "step  20/1000  loss 2.3456  |g| 0.812  lr 3.00e-04  123 ms  16.6k tok/s  MFU 41.2 %  1.20 GiB
//  2m05s left", on one line. `time_left_s` < 0: unknown.
std::string FormatStep(const StepRecord& record, int64_t total_steps, double time_left_s);

// Not for several threads. The stream must outlive it.
class Console {
 public:
  Console(std::ostream& out, const ConsoleOptions& options) : out_(out), options_(options) {}
  ~Console();  // Takes the bar away.
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void Step(const StepRecord& record, int64_t total_steps, double time_left_s);
  void Eval(const EvalRecord& record);
  void Checkpoint(const CheckpointRecord& record);
  void Skipped(const SkippedRecord& record);
  void Line(std::string_view text);     // Anything else; may hold several lines.
  void Warning(std::string_view text);  // "warning: ...".

  // Moves the bar, which stays below all lines. Nothing where there is no terminal.
  void Progress(int64_t step, int64_t total_steps, double time_left_s);

 private:
  enum class Colour { kNone, kBold, kGreen, kYellow };
  void Print(Colour colour, std::string_view text);
  void EraseBar();

  std::ostream& out_;
  ConsoleOptions options_;
  std::string bar_;  // As shown now; empty: none.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_CONSOLE_H_
