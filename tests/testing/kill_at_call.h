// Ends a process at each of its system calls in turn.
#ifndef FSDP_TRAIN_TESTS_TESTING_KILL_AT_CALL_H_
#define FSDP_TRAIN_TESTS_TESTING_KILL_AT_CALL_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace fsdp::testing {

// Runs `child` in a process of its own, which marks a place by stopping itself, and ends it by
// SIGKILL before its `count`-th system call from there. True if it was killed, false if it ended by
// itself, with status 0.
inline bool KillAtCall(int count, const std::function<bool()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    raise(SIGSTOP);
    _exit(child() ? 0 : 3);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSTOPPED(status)) << "no ptrace here: status " << status;
  for (int stops = 0; WIFSTOPPED(status); ++stops) {
    if (stops == 2 * count) {  // A stop at each call's beginning and end.
      kill(pid, SIGKILL);
      EXPECT_EQ(waitpid(pid, &status, 0), pid);
      return true;
    }
    ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  return false;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_KILL_AT_CALL_H_
