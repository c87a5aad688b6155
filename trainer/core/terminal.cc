#include "trainer/core/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

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

ProgressLine::ProgressLine() : terminal_(IsTerminal(STDERR_FILENO)), every_(terminal_ ? 0.2 : 10) {}

ProgressLine::~ProgressLine() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

double ProgressLine::Seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

bool ProgressLine::IsDue() const { return Seconds() >= next_; }

void ProgressLine::Show(const std::string& line) {
  if (!IsDue()) return;
  next_ = Seconds() + every_;
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
  std::fflush(stderr);
  drawn_ = terminal_;
}

}  // namespace fsdp
