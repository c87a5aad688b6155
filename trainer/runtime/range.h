// A range of memory, as operations declare what they read and write.
// Tests: tests/trainer/runtime/stream_checker_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_RANGE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_RANGE_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/memory.h"

namespace fsdp {

// Bytes [begin, begin + bytes): the same for the device's address and the host's.
struct Range {
  uintptr_t begin = 0;
  int64_t bytes = 0;

  Range() = default;
  Range(const void* data, int64_t n)
      : begin(reinterpret_cast<uintptr_t>(HostAddress(data))), bytes(n) {}
  Range(const View& v) : Range(v.data, v.bytes()) {}       // NOLINT: reads as `{x, w}`.
  Range(const ConstView& v) : Range(v.data, v.bytes()) {}  // NOLINT
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_RANGE_H_
