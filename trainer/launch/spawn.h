// Ranks as processes, and what this process changes about itself to supervise them.
// Tests: tests/trainer/launch/supervisor_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_SPAWN_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_SPAWN_H_

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "trainer/core/unique_fd.h"

namespace fsdp {

struct SpawnedProcess {
  pid_t pid;        // And process group.
  UniqueFd output;  // Read ends of its stdout and stderr. Non-blocking, close-on-exec.
  UniqueFd errors;
};

// Runs `program` (a path) with `argv` and `environment` ("NAME=value"), stdin from /dev/null. The
// kernel sends it SIGKILL when the calling thread ends. `in_child` is called in the new process,
// with the caller's signal mask, just before it becomes the program: async-signal-safe calls only.
// Returns when the program runs; throws DeviceError where it does not. Descriptors 0 to 2 must be
// open.
SpawnedProcess Spawn(const std::string& program, const std::vector<std::string>& argv,
                     const std::vector<std::string>& environment,
                     const std::function<void()>& in_child);

// A pipe's read and write end, close-on-exec. Throws DeviceError.
std::pair<UniqueFd, UniqueFd> MakePipe();

// From construction to destruction SIGINT, SIGTERM, SIGHUP (unless ignored), SIGUSR1, SIGUSR2 and
// SIGCHLD are blocked and read from signals(), SIGPIPE is ignored, orphaned descendants become
// children of this process, and the soft limit of open files is at least `files` where the hard one
// allows. Signals not read by then are dropped. Opens descriptors 0 to 2 on /dev/null, for good,
// where they are closed: pipes must not get those numbers. For a process of one thread.
class ProcessScope {
 public:
  explicit ProcessScope(rlim_t files);  // Throws DeviceError.
  ~ProcessScope();
  ProcessScope(const ProcessScope&) = delete;
  ProcessScope& operator=(const ProcessScope&) = delete;

  int signals() const { return signals_.get(); }  // A signalfd, non-blocking.
  // Gives a forked child what was there before, but for the signals to stop and the like, which
  // stay blocked: it has no handlers yet (stop_signal.h). Async-signal-safe.
  void RestoreInChild() const;

 private:
  sigset_t handled_;
  sigset_t previous_mask_;
  struct sigaction previous_pipe_;
  struct sigaction previous_child_;
  rlimit previous_files_;
  int previous_subreaper_ = 0;
  UniqueFd signals_;
};

// Kills and reaps all children of this process, those too that they leave to it. Blocks until there
// are none.
void EndChildren();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_SPAWN_H_
