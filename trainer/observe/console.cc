#include "trainer/observe/console.h"

#include <fcntl.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/core/terminal.h"
#include "trainer/core/unique_fd.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"

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

// The locale's installed data are not asked: in a container there often are none.
bool Utf8Locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string text(value);
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

std::string Repeat(std::string_view text, int64_t times) {
  std::string out;
  for (; times > 0; --times) out += text;
  return out;
}

std::string AsBar(const std::string& bar) { return kBarMark + bar + "\n"; }

constexpr size_t kTrendCells = 8;
constexpr size_t kTrendLosses = 160;  // Losses that the trend is made of.
constexpr double kDrawEvery_s = 0.1;

std::string Rate(const StepRecord& r) {
  return IsOfSamples(r) ? HumanCount(r.samples_per_s) + " samples/s"
                        : HumanCount(r.tokens_per_s) + " tok/s";
}

}  // namespace

ConsoleOptions DetectConsole(int fd, int rank) {
  ConsoleOptions options;
  options.enabled = rank == 0;
  const char* launcher = std::getenv(kTerminalVariable);
  options.launched = launcher != nullptr && *launcher != '\0';
  options.terminal = options.launched || IsTerminal(fd);
  const char* no_color = std::getenv("NO_COLOR");
  options.colours = options.terminal && (no_color == nullptr || *no_color == '\0');
  options.utf8 = options.terminal && Utf8Locale();
  if (options.launched) {
    const auto terminal = std::make_shared<const UniqueFd>(
        ::open(launcher, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    options.width = [terminal] { return TerminalWidth(terminal->get()); };
  } else {
    options.width = [fd] { return TerminalWidth(fd); };
  }
  options.clock = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  return options;
}

std::string FormatStep(const StepRecord& r, int64_t total_steps, double time_left_s) {
  std::string line = StepOf(r.step, total_steps);
  line += "  loss " + FixedPoint(r.loss_mean, 4);
  line += "  |g| " + Number("%.3g", r.grad_norm);
  line += "  lr " + Number("%.2e", r.lr);
  line += "  " + HumanDuration(r.step_time_s);
  line += "  " + Rate(r);
  if (r.mfu) line += "  MFU " + Number("%.1f", *r.mfu * 100) + " %";
  line += "  " + HumanBytes(std::max(r.memory.reserved, r.memory.allocated));
  if (time_left_s > 0) line += "  " + HumanDuration(time_left_s) + " left";
  return line;
}

Console::~Console() {
  if (!bar_.empty()) out_ << (options_.launched ? AsBar("") : Erase()) << std::flush;
}

void Console::Step(const StepRecord& record, int64_t total_steps, double time_left_s) {
  {
    const std::lock_guard lock(mutex_);
    now_.rate = record.tokens_per_s > 0 ? Rate(record) : "";
    now_.memory = std::max(record.memory.reserved, record.memory.allocated);
    now_.step = std::max(now_.step, record.step);  // Progress() tells of it later.
  }
  Print(Colour::kNone, FormatStep(record, total_steps, time_left_s));
}

void Console::Eval(const EvalRecord& record) {
  const std::string name = record.name.empty() ? "" : " of " + record.name;
  std::string line = "eval" + name + " at step " + std::to_string(record.step) + ": loss " +
                     FixedPoint(record.loss, 4);
  if (const std::optional<double> value = record.Value()) {
    line += ", " + std::string(record.metric->name) + " " + Number("%.4g", *value);
  }
  Print(Colour::kGreen, line);
}

void Console::Checkpoint(const CheckpointRecord& record) {
  Print(Colour::kBold, "checkpoint at step " + std::to_string(record.step) + ": " + record.path +
                           ", " + HumanBytes(record.bytes) + " in " +
                           HumanDuration(record.seconds));
}

void Console::Line(std::string_view text) { Print(Colour::kNone, text); }

void Console::Warning(std::string_view text) {
  Print(Colour::kYellow, "warning: " + std::string(text));
}

void Console::Above(const std::function<void()>& write) {
  if (options_.launched) return write();
  const std::lock_guard lock(mutex_);
  if (!bar_.empty()) out_ << Erase() << std::flush;
  write();
  if (bar_.empty()) return;
  bar_ = Bar();
  out_ << bar_ << std::flush;
}

void Console::Progress(int64_t step, int64_t total_steps, double loss, double time_left_s) {
  if (!options_.enabled || !options_.terminal || total_steps < 1) return;
  const std::lock_guard lock(mutex_);
  now_.step = std::max(now_.step, step);
  now_.total = total_steps;
  now_.time_left_s = time_left_s;
  now_.losses.push_back(loss);
  if (now_.losses.size() > kTrendLosses) now_.losses.pop_front();
  const double now = options_.clock ? options_.clock() : 0;
  if (options_.clock && !bar_.empty() && step < total_steps && now - drawn_at_ < kDrawEvery_s) {
    return;
  }
  drawn_at_ = now;
  std::string bar = Bar();
  if (bar == bar_) return;
  // In one write: what another process writes comes before it or behind it.
  out_ << (options_.launched ? AsBar(bar) : Erase() + bar) << std::flush;
  bar_ = std::move(bar);
}

std::string Trend(const std::deque<double>& losses, bool utf8) {
  std::vector<double> finite;
  for (const double loss : losses) {
    if (std::isfinite(loss)) finite.push_back(loss);
  }
  if (finite.size() < 2) return "";
  const size_t cells = std::min(kTrendCells, finite.size());
  std::vector<double> means;
  for (size_t c = 0; c < cells; ++c) {
    const size_t begin = c * finite.size() / cells, end = (c + 1) * finite.size() / cells;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += finite[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {"_", ".", "-", "=", "^"};
  const int levels = utf8 ? std::size(kBlocks) : std::size(kAscii);
  std::string out;
  for (const double mean : means) {
    const double share = *high > *low ? (mean - *low) / (*high - *low) : 0;
    const int level = std::clamp(static_cast<int>(share * levels), 0, levels - 1);
    out += utf8 ? kBlocks[level] : kAscii[level];
  }
  return out;
}

std::string Console::Bar() const {
  const int width = Width() - 1;  // One column stays free: a full last one wraps.
  const std::string step = StepOf(now_.step, now_.total);
  const std::string trend = Trend(now_.losses, options_.utf8);
  const std::string left = now_.time_left_s > 0 ? HumanDuration(now_.time_left_s) + " left" : "";
  const std::string loss = "loss " + FixedPoint(now_.losses.back(), 4);
  const std::string& rate = now_.rate;
  const std::string memory = now_.memory > 0 ? HumanBytes(now_.memory) : "";

  // Adds parts while there is room, the most wanted first. The bar takes 10 to 40 columns of the
  // rest.
  int room = width - Columns(step);
  const auto fits = [&](const std::string& part) {
    const int columns = Columns(part) + 2;
    if (part.empty() || columns > room) return false;
    room -= columns;
    return true;
  };
  const bool has_left = fits(left), has_loss = fits(loss);
  const int reserved = room >= 14 ? 14 : 0;  // Two blanks, brackets and ten cells.
  room -= reserved;
  const bool has_rate = fits(rate);
  const bool has_trend = has_loss && fits(trend);
  const bool has_memory = fits(memory);
  const auto cells = reserved == 0 ? 0 : std::min(40, 10 + room);

  std::string line = step;
  if (cells > 0) {
    const int64_t done = std::clamp<int64_t>(now_.step, 0, now_.total);
    const auto full = static_cast<int64_t>(static_cast<double>(cells) * static_cast<double>(done) /
                                           static_cast<double>(now_.total));
    const char* const colour = options_.colours ? "\033[32m" : "";
    const char* const plain = options_.colours ? "\033[0m" : "";
    line += options_.utf8 ? "  ▕" : "  [";
    line += colour + Repeat(options_.utf8 ? "█" : "#", full) + plain;
    line += Repeat(options_.utf8 ? "░" : ".", cells - full) + (options_.utf8 ? "▏" : "]");
  }
  if (has_loss) line += "  " + loss;
  if (has_trend) line += "  " + trend;
  if (has_rate) line += "  " + rate;
  if (has_memory) line += "  " + memory;
  if (has_left) line += "  " + left;
  if (Columns(step) > width) line.resize(static_cast<size_t>(std::max(0, width)));
  return line;
}

void Console::Print(Colour colour, std::string_view raw) {
  if (!options_.enabled) return;
  const std::string text = Printable(raw);  // Names and samples may hold anything.
  const std::lock_guard lock(mutex_);
  if (options_.copy) options_.copy(text);
  const char* const codes[] = {"", "\033[1m", "\033[32m", "\033[33m"};
  const bool paint = options_.colours && !options_.launched && colour != Colour::kNone;
  std::string all = Erase();
  if (paint) all += codes[static_cast<int>(colour)];
  all += text;
  if (paint) all += "\033[0m";
  all += "\n";
  if (!bar_.empty()) {
    const std::string bar = Bar();
    if (!options_.launched) all += bar;
    if (options_.launched && bar != bar_) all = AsBar(bar) + all;  // Before the line: never behind.
    bar_ = bar;
  }
  out_ << all << std::flush;
}

std::string Console::Erase() const { return options_.launched ? "" : EraseBar(bar_, Width()); }

}  // namespace fsdp
