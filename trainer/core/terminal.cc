#include "trainer/core/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "trainer/core/units.h"

namespace fsdp {

bool IsTerminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb" &&
         std::getenv("OMPI_COMM_WORLD_RANK") == nullptr;
}

int TerminalWidth(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? int{size.ws_col} : 80;
}

int Columns(std::string_view utf8) {
  return static_cast<int>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string WithoutColours(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      i = std::min(text.find('m', i), text.size());
      continue;
    }
    out += text[i];
  }
  return out;
}

std::string EraseBar(std::string_view bar, int width) {
  if (bar.empty()) return "";
  const int rows = (Columns(WithoutColours(bar)) - 1) / std::max(1, width);  // Above the last one.
  return "\r" + (rows > 0 ? "\033[" + std::to_string(rows) + "A\033[J" : "\033[K");
}

ProgressLine::ProgressLine()
    : terminal_(IsTerminal(STDERR_FILENO)), every_(terminal_ ? 0.2 : 10), next_(every_) {}

ProgressLine::ProgressLine(std::string doing, std::optional<double> first_s) : ProgressLine() {
  next_ = first_s.value_or(terminal_ ? 2 : every_);
  doing_ = std::move(doing);
  watch_ = std::thread([this] { Watch(); });
}

ProgressLine::~ProgressLine() { End(); }

double ProgressLine::Seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

bool ProgressLine::IsDue() const {
  const std::lock_guard lock(mutex_);
  return Seconds() >= next_;
}

void ProgressLine::Show(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (Seconds() >= next_) Draw(line);
}

void ProgressLine::Do(std::string doing) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(doing);
}

void ProgressLine::End() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  if (watch_.joinable()) watch_.join();
  std::fputs(EraseBar(std::exchange(drawn_, ""), TerminalWidth(STDERR_FILENO)).c_str(), stderr);
}

void ProgressLine::Draw(const std::string& line) {
  next_ = Seconds() + every_;
  const std::string erased = EraseBar(drawn_, TerminalWidth(STDERR_FILENO));
  std::fprintf(stderr, terminal_ ? "%s%s" : "%s%s\n", erased.c_str(), line.c_str());
  std::fflush(stderr);
  if (terminal_) drawn_ = line;
}

void ProgressLine::Watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(next_ - Seconds()),
                         [&] { return ends_; })) {
    if (Seconds() >= next_) Draw(doing_ + ", " + HumanDuration(Seconds()) + " so far");
  }
}

}  // namespace fsdp
