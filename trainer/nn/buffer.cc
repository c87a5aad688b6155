#include "trainer/nn/buffer.h"

#include <stdexcept>
#include <utility>

#include "trainer/autograd/tape.h"
#include "trainer/core/check.h"

namespace fsdp {

ModelBuffer::ModelBuffer(std::string name, const Shape& shape, DType dtype, double initial)
    : name_(std::move(name)),
      shape_(shape),
      dtype_(dtype),
      kind_(dtype == DType::kInt64 ? Kind::kCount : Kind::kStatistic),
      initial_(initial) {
  if ((dtype != DType::kFloat32 && dtype != DType::kInt64) || shape.NumElements() == 0) {
    throw std::invalid_argument("[ModelBuffer] " + name_ + " is " + std::string(Name(dtype)) +
                                " of shape " + shape.ToString() +
                                ", want fp32 or int64, and an element");
  }
}

ModelBuffer::ModelBuffer(std::string name, const Shape& shape, Kind kind)
    : name_(std::move(name)), shape_(shape), dtype_(DType::kFloat32), kind_(kind), initial_(0) {}

ConstView ModelBuffer::Read(const Tape& tape) const {
  FSDP_CHECK(!tape.training()) << name_ << " is read in a training step";
  FSDP_CHECK(value_.data != nullptr) << name_ << " is read outside a step";
  return value_;
}

ConstView ModelBuffer::Before() const {
  FSDP_CHECK(kind_ == Kind::kTally || kind_ == Kind::kBias) << name_ << " is a statistic";
  FSDP_CHECK(before_.data != nullptr) << name_ << " is read outside a step";
  return before_;
}

View ModelBuffer::Write(const Tape& tape) const {
  FSDP_CHECK(kind_ != Kind::kBias) << name_ << " is written by forward";
  FSDP_CHECK(tape.writes_buffers())
      << name_ << " is written outside the forward of a training step";
  FSDP_CHECK(value_.data != nullptr) << name_ << " is written outside a step";
  return value_;
}

void ModelBuffer::Bind(const View& value, const View& before) {
  FSDP_CHECK(value.data == nullptr || (value.shape == shape_ && value.dtype == dtype_))
      << name_ << " is " << Name(dtype_) << " of shape " << shape_.ToString() << ", bound to "
      << Name(value.dtype) << " of shape " << value.shape.ToString();
  value_ = value;
  before_ = before;
}

}  // namespace fsdp
