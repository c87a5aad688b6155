// A point of a rank's memory over time, as traces show it.
// Tests: tests/trainer/engine/step_memory_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_MEMORY_POINT_H_
#define FSDP_TRAIN_TRAINER_CORE_MEMORY_POINT_H_

#include <cstdint>

namespace fsdp {

// Bytes from `at_s` to the next point. Caching allocator: bytes in use; bytes in use or still read
// by a stream; bytes taken from the device. Planned memory: the bytes in use
// (engine/step_memory.h), twice, and the plan.
struct MemoryPoint {
  double at_s = 0;  // On the clock of the spans beside it.
  int64_t allocated = 0, active = 0, reserved = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_MEMORY_POINT_H_
