// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_BUMP_ALLOCATOR_H_
#define FSDP_TRAIN_TRAINER_FSDP_BUMP_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>

#include "trainer/core/round_up.h"
#include "trainer/core/view.h"

namespace fsdp {

// Cuts views from bytes, one behind the other, each at a multiple of 64 bytes.
class BumpAllocator {
 public:
  explicit BumpAllocator(const View& bytes) : next_(bytes.data) {}
  View Take(int64_t elements, DType dtype) {
    const View view(next_, dtype, Shape{elements});
    next_ += RoundUp(view.bytes(), 64);
    return view;
  }

 private:
  std::byte* next_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_BUMP_ALLOCATOR_H_
