#include "trainer/runtime/device.h"

#include <utility>

#include "trainer/core/check.h"

namespace fsdp {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->Free(data_, bytes_);
}

View Buffer::As(DType dtype, const Shape& shape, int64_t byte_offset) const {
  View view(data_ + byte_offset, dtype, shape);
  FSDP_CHECK_LE(byte_offset + view.bytes(), bytes_);
  return view;
}

Buffer Device::Allocate(int64_t bytes) {
  FSDP_CHECK_LE(0, bytes);
  return bytes == 0 ? Buffer() : Buffer(*this, DoAllocate(bytes), bytes);
}

void Device::Free(std::byte* data, int64_t bytes) noexcept {
  if (checker_) checker_->OnFree(Range(data, bytes));
  DoFree(data, bytes);
}

}  // namespace fsdp
