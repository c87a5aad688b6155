#include "trainer/launch/exit_words.h"

#include <csignal>

#include "trainer/core/errors.h"

namespace fsdp {

std::string SignalName(int number) {
  switch (number) {
#define NAMED(name) \
  case name:        \
    return #name
    NAMED(SIGABRT);
    NAMED(SIGALRM);
    NAMED(SIGBUS);
    NAMED(SIGCHLD);
    NAMED(SIGCONT);
    NAMED(SIGFPE);
    NAMED(SIGHUP);
    NAMED(SIGILL);
    NAMED(SIGINT);
    NAMED(SIGIO);
    NAMED(SIGKILL);
    NAMED(SIGPIPE);
    NAMED(SIGPROF);
    NAMED(SIGPWR);
    NAMED(SIGQUIT);
    NAMED(SIGSEGV);
    NAMED(SIGSTKFLT);
    NAMED(SIGSTOP);
    NAMED(SIGSYS);
    NAMED(SIGTERM);
    NAMED(SIGTRAP);
    NAMED(SIGTSTP);
    NAMED(SIGTTIN);
    NAMED(SIGTTOU);
    NAMED(SIGURG);
    NAMED(SIGUSR1);
    NAMED(SIGUSR2);
    NAMED(SIGVTALRM);
    NAMED(SIGWINCH);
    NAMED(SIGXCPU);
    NAMED(SIGXFSZ);
#undef NAMED
    default:
      return "signal " + std::to_string(number);
  }
}

std::string Meaning(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kUsage:
      return ", usage or recipe";
    case ExitCode::kMemory:
      return ", does not fit in memory";
    case ExitCode::kData:
      return ", data";
    case ExitCode::kCheckpoint:
      return ", checkpoint or run directory";
    case ExitCode::kCollective:
      return ", a collective failed or timed out";
    case ExitCode::kNotFinite:
      return ", loss or weights not finite";
    default:
      return "";
  }
}

std::string HowItEnded(int code) {
  if (code > 128) return "killed by " + SignalName(code - 128);
  return "exit code " + std::to_string(code) + Meaning(code);
}

bool Restartable(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kDone:
    case ExitCode::kUsage:
    case ExitCode::kMemory:
    case ExitCode::kData:
    case ExitCode::kCheckpoint:
    case ExitCode::kNotFinite:  // From the same checkpoint, the same steps give the same numbers.
      return false;
    default:
      return true;
  }
}

}  // namespace fsdp
