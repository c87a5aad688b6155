#include "trainer/runtime/allocator.h"

namespace fsdp {

Tensor::Tensor(Allocator& allocator, DType dtype, const Shape& shape, MemoryUse use)
    : allocator_(allocator), use_(use), view_(nullptr, dtype, shape) {
  if (view_.bytes() > 0) view_.data = allocator_.Allocate(view_.bytes(), use);
}

Tensor::~Tensor() {
  if (view_.data != nullptr) allocator_.Free(view_.data, view_.bytes(), use_);
}

}  // namespace fsdp
