#include "trainer/runtime/device.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/runtime/range.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

const char* Name(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return "cuda";
    case DeviceType::kSim:
      return "sim";
  }
  return "";
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::exchange(other.device_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  place_ = other.place_;
  return *this;
}

void Buffer::Release() noexcept {
  if (data_ != nullptr) device_->Free(data_, bytes_, place_);
}

View Buffer::As(DType dtype, const Shape& shape, int64_t byte_offset) const {
  FSDP_CHECK_LE(0, byte_offset);
  View view(data_ + byte_offset, dtype, shape);
  FSDP_CHECK_LE(byte_offset + view.bytes(), bytes_);
  return view;
}

Buffer Device::Allocate(int64_t bytes, MemoryPlace place) {
  FSDP_CHECK_LE(0, bytes);
  return bytes == 0 ? Buffer() : Buffer(*this, DoAllocate(bytes, place), bytes, place);
}

std::vector<Span> Device::ByStreamAndTime(std::vector<Span> spans) {
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.stream, a.begin_s) < std::tie(b.stream, b.begin_s);
  });
  return spans;
}

void Device::Free(std::byte* data, int64_t bytes, MemoryPlace place) noexcept {
  if (checker_) checker_->OnFree(Range(data, bytes));
  DoFree(data, bytes, place);
}

}  // namespace fsdp
