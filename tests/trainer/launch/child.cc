// A program that, like fsdp-train, is both supervisor and rank, and whose ranks misbehave on
// command:
//   child launch [options of launch] -- ACTION ...
// An ACTION is --RANK:VERB[=VALUE], RANK a number or `all`; a rank does its own in order, then
// returns 0. LAUNCH_TEST_{GRACE,GRACE_AFTER_SIGTERM,REPEAT}_MS and LAUNCH_TEST_MEMORY_ROOT set what
// has no flag or is too long for tests. With LAUNCH_TEST_TAKES_SIGCHLD a thread of the supervisor
// takes that signal, as one of a driver may.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trainer/core/command_line.h"
#include "trainer/core/errors.h"
#include "trainer/launch/environment.h"
#include "trainer/launch/exit_words.h"
#include "trainer/launch/launch_command.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/launch/supervisor.h"

namespace fsdp {
namespace {

void Write(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written > 0) done += static_cast<size_t>(written);
  }
}

bool terminated_at_first;  // A SIGTERM before main() would have been this process's end.

void Sleep(int ms) { usleep(static_cast<useconds_t>(ms) * 1000); }

[[noreturn]] void SleepForEver() {
  for (;;) pause();
}

int SignalNumber(const std::string& name) {
  for (int number = 1; number < 32; ++number) {
    if (name == sigabbrev_np(number)) return number;
  }
  throw std::invalid_argument("signal " + name);
}

sigset_t ReportedSignals() {
  sigset_t all;
  sigemptyset(&all);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&all, number);
  return all;
}

// Prints the signals that come, blocked by then, until `last` has.
void PrintSignals(const std::string& who, int last) {
  const sigset_t all = ReportedSignals();
  for (int number = 0; number != last;) {
    sigwait(&all, &number);
    Write(STDOUT_FILENO, who + "caught " + sigabbrev_np(number) + "\n");
  }
}

// Prints `ready` before.
void ReportSignals(int last) {
  const sigset_t all = ReportedSignals();
  sigprocmask(SIG_BLOCK, &all, nullptr);
  Write(STDOUT_FILENO, "ready\n");
  PrintSignals("", last);
}

// The same by a child of the rank, in its group, which is ready on return.
void ReportSignalsOfAChild(int last) {
  const sigset_t all = ReportedSignals();
  sigprocmask(SIG_BLOCK, &all, nullptr);
  if (fork() != 0) return;
  PrintSignals("child ", last);
  SleepForEver();  // Its end would be a signal of its own.
}

// As the training loop: ends with 75 when a stop was requested. With `hang` it only says so.
int Train(std::chrono::milliseconds repeat, bool hang) {
  StopSignal signals(repeat);
  Write(STDOUT_FILENO, "ready\n");
  while (!signals.stop_requested()) {
    Sleep(1);
    if (signals.TakeCheckpointRequest()) Write(STDOUT_FILENO, "checkpoint\n");
    if (signals.TakeReportRequest()) Write(STDOUT_FILENO, "report\n");
  }
  Write(STDOUT_FILENO, "stop requested\n");
  if (hang) SleepForEver();
  return static_cast<int>(ExitCode::kStopped);
}

// Writes lines of so many bytes all the time, and ends like Train().
int PrintUntilStop(int bytes) {
  const std::string line = std::string(static_cast<size_t>(bytes), 'x') + "\n";
  for (StopSignal signals; !signals.stop_requested();) Write(STDOUT_FILENO, line);
  return static_cast<int>(ExitCode::kStopped);
}

// As a rank that waits for the others: ends when one of them has left, or after 30 s.
int WaitUntilLeft(std::chrono::milliseconds repeat) {
  StopSignal signals(repeat);
  for (int ms = 0; ms < 30000 && !signals.rank_left(); ++ms) Sleep(1);
  if (!signals.rank_left()) return 1;
  const RankLeft left = *signals.rank_left();
  Write(STDOUT_FILENO,
        "rank " + std::to_string(left.rank) + " has left: " + HowItEnded(left.code) + "\n");
  return left.code == static_cast<int>(ExitCode::kStopped) ? left.code : 6;
}

// Binds and listens where the supervisor says that the store is, as the store does.
void Listen(const RankEnvironment& environment) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(environment.master_port));
  const bool listens =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0;
  Write(STDOUT_FILENO, listens ? "listens\n" : std::string("cannot listen: ") + strerror(errno));
}

void StartGrandchild(bool own_session) {
  int ready[2];
  if (pipe(ready) != 0) throw std::runtime_error("pipe");
  const pid_t grandchild = fork();
  if (grandchild == 0) {
    if (own_session) setsid();
    signal(SIGTERM, SIG_IGN);
    Write(ready[1], "x");
    SleepForEver();
  }
  char byte;
  while (read(ready[0], &byte, 1) != 1) {
  }
  Write(STDOUT_FILENO, "grandchild " + std::to_string(grandchild) + "!\n");
}

int Do(const RankEnvironment& environment, const std::string& verb, const std::string& value) {
  const auto number = [&] { return std::stoi(value); };
  if (verb == "exit") _exit(number());
  if (verb == "fail_at_first") {
    if (environment.restart_count == 0) _exit(number());
  } else if (verb == "raise") {
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SignalNumber(value), SIG_DFL);  // A sanitizer catches SIGSEGV.
    raise(SignalNumber(value));
  } else if (verb == "print") {
    Write(STDOUT_FILENO, value + "\n");
  } else if (verb == "half") {
    Write(STDOUT_FILENO, value);
  } else if (verb == "error") {
    Write(STDERR_FILENO, value + "\n");
  } else if (verb == "binary") {
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
    Write(STDOUT_FILENO, bytes + "\n");
  } else if (verb == "long") {
    Write(STDOUT_FILENO, std::string(static_cast<size_t>(number()), 'x') + "\n");
  } else if (verb == "lines") {  // On both streams, each line of one letter.
    const std::string line = std::string(5000, static_cast<char>('a' + environment.rank)) + "\n";
    for (int i = 0; i < number(); ++i) Write(1 + i % 2, line);
  } else if (verb == "environment") {
    Write(STDOUT_FILENO,
          Describe(environment) + ", port " + std::to_string(environment.master_port) + ", store " +
              std::to_string(StorePort(environment, std::nullopt)) + ", at " +
              environment.master_addr + ", restart " + std::to_string(environment.restart_count) +
              " of " + std::to_string(environment.max_restarts) + "\n");
  } else if (verb == "variable") {
    const char* const text = std::getenv(value.c_str());
    Write(STDOUT_FILENO, value + (text == nullptr ? " unset" : "=" + std::string(text)) + "\n");
  } else if (verb == "stdin") {
    char byte;
    Write(STDOUT_FILENO, read(STDIN_FILENO, &byte, 1) == 0 ? "at its end\n" : "not at its end\n");
  } else if (verb == "group") {
    Write(STDOUT_FILENO, getpgrp() == getpid() ? "own group\n" : "shared group\n");
  } else if (verb == "files") {
    rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    Write(STDOUT_FILENO, "files " + std::to_string(files.rlim_cur) + "\n");
  } else if (verb == "descriptors") {  // Open ones beyond 0 to 2 would be leaks of the supervisor.
    for (int fd = 3; fd < 256; ++fd) {
      if (fcntl(fd, F_GETFD) >= 0) Write(STDOUT_FILENO, "open " + std::to_string(fd) + "\n");
    }
  } else if (verb == "ignore") {
    signal(SignalNumber(value), SIG_IGN);
  } else if (verb == "signals") {
    ReportSignals(SignalNumber(value));
  } else if (verb == "held") {
    Write(STDOUT_FILENO, terminated_at_first ? "not held\n" : "signals held\n");
  } else if (verb == "child_signals") {
    ReportSignalsOfAChild(SignalNumber(value));
  } else if (verb == "train") {
    _exit(Train(std::chrono::milliseconds(number()), false));
  } else if (verb == "never_stop") {
    _exit(Train(std::chrono::milliseconds(number()), true));
  } else if (verb == "print_until_stop") {
    _exit(PrintUntilStop(number()));
  } else if (verb == "until_left") {
    _exit(WaitUntilLeft(std::chrono::milliseconds(number())));
  } else if (verb == "ms") {
    Sleep(number());
  } else if (verb == "touch") {
    fclose(fopen(value.c_str(), "w"));
  } else if (verb == "oom_kill") {  // As the kernel would: the count rises, then SIGKILL.
    FILE* const file = fopen(value.c_str(), "w");
    fputs("under_oom 0\noom_kill 4\n", file);
    fclose(file);
    raise(SIGKILL);
  } else if (verb == "await") {
    while (access(value.c_str(), F_OK) != 0) Sleep(1);
  } else if (verb == "listen") {
    Listen(environment);
  } else if (verb == "grandchild") {
    StartGrandchild(value == "session");
  } else if (verb == "sleep") {
    SleepForEver();
  } else {
    throw std::invalid_argument("verb " + verb);
  }
  return 0;
}

int RunRank(int argc, char** argv) {
  sigset_t at_first;
  sigprocmask(SIG_BLOCK, nullptr, &at_first);
  terminated_at_first = sigismember(&at_first, SIGTERM) == 0;
  const RankEnvironment environment = ReadRankEnvironment();
  for (int i = 1; i < argc; ++i) {
    const std::string action = argv[i];
    const size_t colon = action.find(':');
    if (colon == std::string::npos) continue;
    const size_t equals = std::min(action.find('='), action.size());
    const std::string rank = action.substr(0, colon).substr(2);  // After `--`.
    if (rank != "all" && rank != std::to_string(environment.rank)) continue;
    const std::string verb = action.substr(colon + 1, equals - colon - 1);
    const bool has_handlers = verb == "train" || verb == "never_stop" ||
                              verb == "print_until_stop" || verb == "until_left";
    if (!has_handlers) ReleaseStopSignals();
    Do(environment, verb, equals < action.size() ? action.substr(equals + 1) : "");
  }
  return 0;
}

void ReadMilliseconds(const char* name, std::chrono::milliseconds* value) {
  if (const char* text = std::getenv(name)) *value = std::chrono::milliseconds(std::stoi(text));
}

int RunSupervisor(int argc, char** argv) {
  std::vector<std::string> config;
  LaunchCommand command;
  Command program{"child", "A supervisor"};
  program.flags = {{"--config", &config, "As fsdp-train itself has it"}};
  program.commands = {MakeLaunchCommand(&command, [] { return 3; })};
  try {
    ReadCommandLine(program, std::vector<std::string>(argv + 1, argv + argc));
    ReadMilliseconds("LAUNCH_TEST_GRACE_MS", &command.options.grace);
    ReadMilliseconds("LAUNCH_TEST_GRACE_AFTER_SIGTERM_MS", &command.options.grace_after_sigterm);
    ReadMilliseconds("LAUNCH_TEST_REPEAT_MS", &command.options.repeat);
    if (const char* root = std::getenv("LAUNCH_TEST_MEMORY_ROOT")) {
      command.options.memory_root = root;
    }
    if (std::getenv("LAUNCH_TEST_TAKES_SIGCHLD") != nullptr) {
      std::thread([] {
        sigset_t ended;
        sigemptyset(&ended);
        sigaddset(&ended, SIGCHLD);
        pthread_sigmask(SIG_UNBLOCK, &ended, nullptr);
        SleepForEver();
      }).detach();
    }
    return Launch(command.options, command.argv);
  } catch (const Error& error) {
    Write(STDERR_FILENO, std::string(error.what()) + "\n");
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "launch") return fsdp::RunSupervisor(argc, argv);
  return fsdp::RunRank(argc, argv);
}
