// Limits of memory above which a plan is not wanted: planning then stops at once.
// Tests: tests/trainer/fsdp/memory_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_MEMORY_CEILING_H_
#define FSDP_TRAIN_TRAINER_FSDP_MEMORY_CEILING_H_

#include <cstdint>
#include <limits>

#include "trainer/core/errors.h"

namespace fsdp {

struct MemoryCeiling {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  int64_t device = kNone;
  int64_t host = kNone;  // All places of host memory together. A disk has no ceiling.
  int64_t all = kNone;   // Device and host, where they are one memory.

  // Throws MemoryError where so many bytes at a time exceed a limit.
  void Check(int64_t on_device, int64_t on_host) const {
    if (on_device > device || on_host > host || on_device + on_host > all) {
      throw MemoryError("does not fit: a step takes more than is wanted");
    }
  }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MEMORY_CEILING_H_
