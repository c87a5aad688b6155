// The memory that this host has left, and a rank's use of it besides the plan of its device.
// Tests: tests/trainer/engine/plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_HOST_MEMORY_H_
#define FSDP_TRAIN_TRAINER_ENGINE_HOST_MEMORY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/core/process_limits.h"

namespace fsdp {

// Memory that the kernel would give this process without swapping: the tightest of the host, the
// control groups and ulimit. Shared limits are divided by `sharers`. `addresses`: bytes that the
// process will reserve and not touch, which ulimit counts nonetheless. Empty: unknown.
std::optional<MemoryRoom> AvailableMemory(const MemoryLimits& limits, int sharers,
                                          int64_t addresses);

// A communicator's group: its ranks, and those of them on this host.
struct GroupOnHost {
  int ranks = 1, here = 1;
};

// Memory of a rank outside its plan. `threads`: threads of its streams and of its disk's reads and
// writes. `multiplying`: those that compute products; `experts`: grouped ones, too. `groups`: the
// groups that it is in.
struct OutsideMemory {
  // The program and its libraries as resident now, the packing buffers of matrix products, stacks,
  // and the rank's share of the communicators' shared memory.
  int64_t bytes = 0;
  int64_t addresses = 0;  // Reserved and not touched.
};
OutsideMemory OutsideOf(int multiplying, bool experts, int threads,
                        const std::vector<GroupOnHost>& groups, const MemoryLimits& limits);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_HOST_MEMORY_H_
