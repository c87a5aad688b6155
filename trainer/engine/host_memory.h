// What this host has room for, and what a rank takes of it besides the plan of its device.
// Tests: tests/trainer/engine/plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_HOST_MEMORY_H_
#define FSDP_TRAIN_TRAINER_ENGINE_HOST_MEMORY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/core/memory_limits.h"

namespace fsdp {

// What the kernel would give this process without swapping: the tightest of the host, the control
// groups and ulimit. Of those that it shares, a part in `sharers`. `addresses`: bytes that it will
// reserve and not touch, for which ulimit asks nonetheless. Empty: unknown.
std::optional<MemoryRoom> AvailableMemory(const MemoryLimits& limits, int sharers,
                                          int64_t addresses);

// What a communicator joins: so many ranks, of which so many are on this host.
struct GroupOnHost {
  int ranks = 1, here = 1;
};

// Of a rank that is in `groups`, whose streams, and what reads and writes its disk, have `threads`
// threads, `multiplying` of which compute products.
struct OutsideMemory {
  // The program and its libraries as they are resident now, the packing buffers of matrix products,
  // stacks, and its share of the communicators' shared memory.
  int64_t bytes = 0;
  int64_t addresses = 0;  // Reserved and not touched.
};
OutsideMemory OutsideOf(int multiplying, int threads, const std::vector<GroupOnHost>& groups,
                        const MemoryLimits& limits);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_HOST_MEMORY_H_
