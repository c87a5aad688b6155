#include "trainer/observe/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "trainer/observe/units.h"

namespace fsdp {
namespace {

std::string Number(const char* format, double value) {
  if (std::isnan(value)) return "nan";  // Its sign, which printf shows, means nothing.
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

std::string StepOf(int64_t step, int64_t total_steps) {
  const std::string total = std::to_string(total_steps), number = std::to_string(step);
  const size_t pad = total.size() > number.size() ? total.size() - number.size() : 0;
  std::string out = "step ";
  return out.append(pad, ' ').append(number).append("/").append(total);
}

}  // namespace

ConsoleOptions DetectConsole(int fd, int rank) {
  ConsoleOptions options;
  options.enabled = rank == 0;
  const char* term = std::getenv("TERM");
  options.terminal = ::isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
  const char* no_color = std::getenv("NO_COLOR");
  options.colours = options.terminal && (no_color == nullptr || *no_color == '\0');
  winsize size{};
  if (options.terminal && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.width = size.ws_col;
  }
  return options;
}

std::string FormatStep(const StepRecord& r, int64_t total_steps, double time_left_s) {
  std::string line = StepOf(r.step, total_steps);
  line += "  loss " + Number("%.4f", r.loss);
  line += "  |g| " + Number("%.3g", r.grad_norm);
  line += "  lr " + Number("%.2e", r.lr);
  line += "  " + HumanDuration(r.step_time_s);
  line += "  " + HumanCount(r.tokens_per_s) + " tok/s";
  if (r.mfu) line += "  MFU " + Number("%.1f", *r.mfu * 100) + " %";
  line += "  " + HumanBytes(std::max(r.memory.reserved, r.memory.allocated));
  if (time_left_s >= 0) line += "  " + HumanDuration(time_left_s) + " left";
  return line;
}

Console::~Console() { EraseBar(); }

void Console::Step(const StepRecord& record, int64_t total_steps, double time_left_s) {
  Print(Colour::kNone, FormatStep(record, total_steps, time_left_s));
}

void Console::Eval(const EvalRecord& record) {
  const std::string name = record.name.empty() ? "" : " of " + record.name;
  Print(Colour::kGreen, "eval" + name + " at step " + std::to_string(record.step) + ": loss " +
                            Number("%.4f", record.loss) + ", perplexity " +
                            Number("%.4g", std::exp(record.loss)));
}

void Console::Checkpoint(const CheckpointRecord& record) {
  Print(Colour::kBold, "checkpoint at step " + std::to_string(record.step) + ": " + record.path +
                           ", " + HumanBytes(record.bytes) + " in " +
                           HumanDuration(record.seconds));
}

void Console::Skipped(const SkippedRecord& record) {
  Print(Colour::kYellow, "step " + std::to_string(record.step) + " skipped: " + record.reason);
}

void Console::Line(std::string_view text) { Print(Colour::kNone, text); }

void Console::Warning(std::string_view text) {
  Print(Colour::kYellow, "warning: " + std::string(text));
}

void Console::Progress(int64_t step, int64_t total_steps, double time_left_s) {
  if (!options_.enabled || !options_.terminal || total_steps < 1) return;
  std::string tail = StepOf(step, total_steps);
  if (time_left_s >= 0) tail += "  " + HumanDuration(time_left_s) + " left";
  // One column stays free: a full last column wraps on some terminals.
  const int64_t room = options_.width - 4 - std::ssize(tail);
  std::string bar;
  if (room >= 10) {
    const int64_t cells = std::min<int64_t>(room, 40);
    const int64_t full = cells * std::clamp<int64_t>(step, 0, total_steps) / total_steps;
    bar.append("[").append(static_cast<size_t>(full), '#');
    bar.append(static_cast<size_t>(cells - full), '.').append("] ");
  }
  bar += tail;
  bar.resize(std::min(bar.size(), static_cast<size_t>(std::max(0, options_.width - 1))));
  if (bar == bar_) return;
  EraseBar();
  bar_ = bar;
  out_ << bar_ << std::flush;
}

void Console::Print(Colour colour, std::string_view text) {
  if (!options_.enabled) return;
  const std::string bar = bar_;
  EraseBar();
  const char* const codes[] = {"", "\033[1m", "\033[32m", "\033[33m"};
  const bool paint = options_.colours && colour != Colour::kNone;
  if (paint) out_ << codes[static_cast<int>(colour)];
  out_ << text;
  if (paint) out_ << "\033[0m";
  bar_ = bar;
  out_ << "\n" << bar_ << std::flush;
}

void Console::EraseBar() {
  if (bar_.empty()) return;
  out_ << "\r\033[K" << std::flush;
  bar_.clear();
}

}  // namespace fsdp
