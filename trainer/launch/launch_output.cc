#include "trainer/launch/launch_output.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "trainer/core/terminal.h"

namespace fsdp {

void Sink::Write(std::string_view text) {
  if (failed_) return;
  if (begin_ >= kFull) {
    queue_.erase(0, begin_);
    begin_ = 0;
  }
  queue_ += text;
}

void Sink::Drain() {
  pollfd ready = {fd_, POLLOUT, 0};
  while (!empty() && poll(&ready, 1, 0) == 1) {
    // Linux reports a pipe as writable when a page of it is free: PIPE_BUF bytes do not block.
    const ssize_t written =
        write(fd_, queue_.data() + begin_, std::min<size_t>(queue_.size() - begin_, PIPE_BUF));
    if (written >= 0) {
      begin_ += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      failed_ = true;
      begin_ = queue_.size();
    }
  }
  if (empty()) {
    queue_.clear();
    begin_ = 0;
  }
}

namespace {

bool SameFile(int a, int b) {
  struct stat first, second;
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

LaunchOutput::LaunchOutput()
    : output_(STDOUT_FILENO),
      errors_(STDERR_FILENO),
      one_file_(SameFile(STDOUT_FILENO, STDERR_FILENO)) {
  char name[256];
  if (IsTerminal(STDOUT_FILENO) && ttyname_r(STDOUT_FILENO, name, sizeof(name)) == 0) {
    terminal_ = name;
  }
}

void LaunchOutput::Line(Sink& sink, std::initializer_list<std::string_view> parts) {
  if (&sink == &output_) HideBar();
  for (const std::string_view part : parts) sink.Write(part);
  sink.Write("\n");
}

void LaunchOutput::SetBar(std::string_view bar) {
  if (terminal_.empty()) return;
  bar_ = bar;
  if (bar_.empty()) HideBar();
}

void LaunchOutput::ShowBar() {
  if (bar_ == shown_ || !output_.empty()) return;
  const std::string erase = EraseBar(shown_, TerminalWidth(STDOUT_FILENO));
  output_.Write(erase + bar_);
  output_.Drain();
  shown_ = bar_;
}

void LaunchOutput::HideBar() {
  if (shown_.empty()) return;
  output_.Write(EraseBar(shown_, TerminalWidth(STDOUT_FILENO)));
  shown_.clear();
}

}  // namespace fsdp
