// A descriptor of cuDNN's backend API with one owner: made, given its attributes, finalized.
// Tests: tests/trainer/ops/cudnn/attention_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_DESCRIPTOR_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_DESCRIPTOR_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "trainer/ops/cudnn/cudnn_api.h"

namespace fsdp::cudnn {

// cuDNN's name for an attribute of this C++ type.
template <typename T>
constexpr AttributeType TypeOf() {
  if constexpr (std::is_same_v<T, int64_t>) return AttributeType::kInt64;
  if constexpr (std::is_same_v<T, int32_t>) return AttributeType::kInt32;
  if constexpr (std::is_same_v<T, float>) return AttributeType::kFloat;
  if constexpr (std::is_same_v<T, bool>) return AttributeType::kBoolean;
  if constexpr (std::is_same_v<T, char>) return AttributeType::kChar;
  if constexpr (std::is_same_v<T, DataType>) return AttributeType::kDataType;
  if constexpr (std::is_same_v<T, ConvolutionMode>) return AttributeType::kConvolutionMode;
  if constexpr (std::is_same_v<T, PointwiseMode>) return AttributeType::kPointwiseMode;
  if constexpr (std::is_same_v<T, ReduceTensorOp>) return AttributeType::kReductionOperatorType;
  if constexpr (std::is_same_v<T, HeurMode>) return AttributeType::kHeurMode;
  if constexpr (std::is_same_v<T, NumericalNote>) return AttributeType::kNumericalNote;
}

// All throw DeviceError but the destructor.
class Descriptor {
 public:
  // `what` names the descriptor in errors, and lives as long as the program.
  Descriptor(const Api& api, DescriptorType type, const char* what) : api_(&api), what_(what) {
    Check(api, api.create_descriptor(type, &handle_), what_);
  }
  Descriptor(Descriptor&& other) noexcept
      : api_(other.api_), what_(other.what_), handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (handle_ != nullptr) (void)api_->destroy_descriptor(handle_);
  }

  DescriptorHandle handle() const { return handle_; }

  template <typename T>
  Descriptor& Set(Attribute attribute, const T& value) {
    return Set(attribute, TypeOf<T>(), 1, &value);
  }
  template <typename T>
  Descriptor& Set(Attribute attribute, const T* values, int64_t n) {
    return Set(attribute, TypeOf<T>(), n, values);
  }
  Descriptor& Set(Attribute attribute, const Descriptor& value) {
    return Set(attribute, AttributeType::kBackendDescriptor, 1, &value.handle_);
  }
  Descriptor& Set(Attribute attribute, AttributeType type, int64_t n, const void* values) {
    Check(*api_, api_->set_attribute(handle_, attribute, type, n, values), what_);
    return *this;
  }

  void Finalize() { Check(*api_, api_->finalize(handle_), what_); }

  // Reads the first `n` values. Returns the number that there are.
  int64_t Get(Attribute attribute, AttributeType type, int64_t n, void* values) const {
    int64_t count = 0;
    Check(*api_, api_->get_attribute(handle_, attribute, type, n, &count, values), what_);
    return count;
  }

 private:
  const Api* api_;
  const char* what_;
  DescriptorHandle handle_ = nullptr;
};

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_DESCRIPTOR_H_
