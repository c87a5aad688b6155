#include "trainer/launch/sink.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

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

}  // namespace fsdp
