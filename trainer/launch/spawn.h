// Starts one rank: a process in a group of its own, whose output comes back through pipes.
// Tests: tests/trainer/launch/supervisor_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_SPAWN_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_SPAWN_H_

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_SPAWN_H_
