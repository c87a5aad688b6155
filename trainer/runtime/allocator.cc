#include "trainer/runtime/allocator.h"

namespace fsdp {

Tensor::Tensor(Allocator& allocator, DType dtype, const Shape& shape, MemoryKind kind)
    : allocator_(allocator), kind_(kind), view_(nullptr, dtype, shape) {
  if (view_.bytes() > 0) view_.data = allocator_.Allocate(view_.bytes(), kind);
}

Tensor::~Tensor() {
  if (view_.data != nullptr) allocator_.Free(view_.data, view_.bytes(), kind_);
}

}  // namespace fsdp
