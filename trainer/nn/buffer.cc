#include "trainer/nn/buffer.h"

#include <stdexcept>
#include <utility>

#include "trainer/autograd/tape.h"
#include "trainer/core/check.h"

namespace fsdp {

ModelBuffer::ModelBuffer(std::string name, const Shape& shape, DType dtype, double initial)
    : name_(std::move(name)), shape_(shape), dtype_(dtype), initial_(initial) {
  if ((dtype != DType::kFloat32 && dtype != DType::kInt64) || shape.NumElements() == 0) {
    throw std::invalid_argument("[ModelBuffer] " + name_ + " is " + std::string(Name(dtype)) +
                                " of shape " + shape.ToString() +
                                ", want fp32 or int64, and an element");
  }
}

ConstView ModelBuffer::Read(const Tape& tape) const {
  FSDP_CHECK(!tape.training()) << name_ << " is read in a training step";
  FSDP_CHECK(value_.data != nullptr) << name_ << " is read outside a step";
  return value_;
}

View ModelBuffer::Write(const Tape& tape) const {
  FSDP_CHECK(tape.writes_buffers())
      << name_ << " is written outside the forward of a training step";
  FSDP_CHECK(value_.data != nullptr) << name_ << " is written outside a step";
  return value_;
}

void ModelBuffer::Bind(const View& value) {
  FSDP_CHECK(value.data == nullptr || (value.shape == shape_ && value.dtype == dtype_))
      << name_ << " is " << Name(dtype_) << " of shape " << shape_.ToString() << ", bound to "
      << Name(value.dtype) << " of shape " << value.shape.ToString();
  value_ = value;
}

}  // namespace fsdp
