// A program that SIGTERM ends says first where its main thread stands: the kit's tests may hang on
// a machine without a debugger. addr2line -e bazel-bin/... names the addresses.
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace {

constexpr int kMostFrames = 64;

void SayWhereItStands(int signal) {
  if (static_cast<pid_t>(syscall(SYS_gettid)) != getpid()) {  // Another thread has met it.
    (void)syscall(SYS_tgkill, getpid(), getpid(), signal);
    return;
  }
  void* frames[kMostFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kMostFrames), STDERR_FILENO);
  _exit(128 + signal);
}

[[maybe_unused]] const bool installed = [] {
  void* frame = nullptr;
  (void)backtrace(&frame, 1);  // Loads what it needs, which the handler must not.
  return std::signal(SIGTERM, SayWhereItStands) != SIG_ERR;
}();

}  // namespace
