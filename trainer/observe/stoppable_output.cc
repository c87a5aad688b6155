#include "trainer/observe/stoppable_output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

namespace fsdp {
namespace {

constexpr std::chrono::milliseconds kTick{20};
constexpr size_t kMostBuffered = 64 << 10;

}  // namespace

StoppableOutput::StoppableOutput(int fd, std::function<bool()> stop_requested,
                                 std::chrono::milliseconds patience)
    : fd_(fd), stop_requested_(std::move(stop_requested)), patience_(patience) {
  struct stat status;
  const bool is_pipe = ::fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
  if (!is_pipe && ::isatty(fd) != 1) return;
  own_ = UniqueFd(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(),
                         O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
}

StoppableOutput::~StoppableOutput() { sync(); }

int StoppableOutput::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

StoppableOutput::int_type StoppableOutput::overflow(int_type c) {
  const char text = traits_type::to_char_type(c);
  if (!traits_type::eq_int_type(c, traits_type::eof()) && xsputn(&text, 1) != 1) {
    return traits_type::eof();
  }
  return traits_type::not_eof(c);
}

std::streamsize StoppableOutput::xsputn(const char* text, std::streamsize count) {
  const std::lock_guard lock(mutex_);
  text_.append(text, static_cast<size_t>(count));
  if (text_.size() < kMostBuffered || WriteAll(std::exchange(text_, {}))) return count;
  return 0;
}

int StoppableOutput::sync() {
  const std::lock_guard lock(mutex_);
  return WriteAll(std::exchange(text_, {})) ? 0 : -1;
}

bool StoppableOutput::WriteAll(std::string_view text) {
  if (error_ == EAGAIN) return false;
  pollfd room = {own_.open() ? own_.get() : fd_, POLLOUT, 0};
  bool ready = false;
  while (!text.empty()) {
    const ssize_t n = WriteSome(text);
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
      ready = false;
    } else if (errno == EAGAIN) {
      // Poll() calls a terminal writable that has no room for a line's end.
      if (ready) std::this_thread::sleep_for(kTick);
      ready = ::poll(&room, 1, static_cast<int>(kTick.count())) > 0;
      if (!WaitsOn()) return false;
    } else if (errno != EINTR) {
      error_ = errno;
      return false;
    }
  }
  return true;
}

ssize_t StoppableOutput::WriteSome(std::string_view text) const {
  if (own_.open()) return ::write(own_.get(), text.data(), text.size());
  pollfd room = {fd_, POLLOUT, 0};
  if (::poll(&room, 1, 0) == 0) return errno = EAGAIN, -1;
  // Linux calls a pipe writable when a page of it is free: PIPE_BUF bytes do not block.
  return ::write(fd_, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
}

bool StoppableOutput::WaitsOn() {
  if (!stop_requested_()) return true;
  const auto now = std::chrono::steady_clock::now();
  if (!until_) until_ = now + patience_;
  if (now < *until_) return true;
  error_ = EAGAIN;
  return false;
}

}  // namespace fsdp
