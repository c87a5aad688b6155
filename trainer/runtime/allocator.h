// The interface by which a step takes memory. A recorder implements it while the plan is made, a
// planned arena afterwards: see fsdp/memory_plan.h.
// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_ALLOCATOR_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_ALLOCATOR_H_

#include <cstdint>
#include <memory>

#include "trainer/core/view.h"
#include "trainer/runtime/memory.h"

namespace fsdp {

// Not thread-safe. Freed memory may be given out again at once: one stream uses all of it, and the
// stream's order keeps the uses apart.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // Aligned to 64 bytes, contents undefined. bytes > 0.
  virtual std::byte* Allocate(int64_t bytes, MemoryUse use) = 0;
  virtual void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept = 0;
};

// A View with an owner.
class Tensor {
 public:
  Tensor(Allocator& allocator, DType dtype, const Shape& shape,
         MemoryUse use = MemoryKind::kActivations)
      : allocator_(allocator), use_(use), view_(nullptr, dtype, shape) {
    if (view_.bytes() > 0) view_.data = allocator_.Allocate(view_.bytes(), use);
  }
  ~Tensor() {
    if (view_.data != nullptr) allocator_.Free(view_.data, view_.bytes(), use_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const View& view() const { return view_; }

 private:
  Allocator& allocator_;
  MemoryUse use_;
  View view_;
};
using TensorPtr = std::shared_ptr<Tensor>;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_ALLOCATOR_H_
