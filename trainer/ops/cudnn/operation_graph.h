// Operations on tensors of four dimensions, joined into a graph that cuDNN runs by one kernel, and
// the descriptors of cuDNN's backend API that a graph is made of.
// Tests: tests/trainer/ops/cudnn/attention_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_OPERATION_GRAPH_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_OPERATION_GRAPH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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

// A descriptor with one owner: made, given its attributes, finalized. All throw DeviceError but the
// destructor.
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

using Dims = std::array<int64_t, 4>;
inline Dims PackedStrides(const Dims& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

// A tensor of a graph, which owns its descriptor.
struct Tensor {
  const Descriptor* descriptor;
  Dims dims;
};

// All throw DeviceError where cuDNN refuses. Math is fp32. An operation returns its output, `y`.
class OperationGraph {
 public:
  explicit OperationGraph(const Api& api) : api_(api) {}

  // A tensor in memory that starts at a multiple of 16 bytes. The caller's ids are under 100.
  Tensor InMemory(int64_t id, const Dims& dims, const Dims& strides, DataType type);
  // One float in the host's memory, read when the graph is executed.
  Tensor Scalar(int64_t id);
  // A value between two operations, which is in no memory.
  Tensor Virtual(const Dims& dims, DataType type = DataType::kFloat);
  Tensor Virtual(const Dims& dims, const Dims& strides, DataType type);

  // y = a b, over the last two dimensions. b has as many heads as a, or one for a group of a's.
  Tensor Matmul(const Tensor& a, const Tensor& b, const Tensor& y);
  Tensor Pointwise(PointwiseMode mode, const Tensor& x, const Tensor& y);
  Tensor Pointwise(PointwiseMode mode, const Tensor& x, const Tensor& b, const Tensor& y);
  Tensor Index(const Tensor& x, int64_t axis);  // int32.
  Tensor GreaterOrEqual(const Tensor& x, const Tensor& b);
  Tensor Select(const Tensor& x, const Tensor& otherwise, const Tensor& where);
  // Reduces the dimensions in which y has fewer elements: to one, or by groups of heads.
  Tensor Reduce(ReduceTensorOp op, const Tensor& x, const Tensor& y);
  // y has the elements of x.
  Tensor Reshape(const Tensor& x, const Tensor& y);

  // A convolution over the last two dimensions, which does not turn its kernel round. x, y: images
  // [samples, channels, height, width]; w: [out, in / groups, height, width]. kForward writes y,
  // kBackwardData x, kBackwardFilter w; the result is overwritten.
  enum class ConvolutionPass { kForward, kBackwardData, kBackwardFilter };
  struct ConvolutionSteps {
    std::array<int64_t, 2> stride, padding;  // Down, right.
  };
  void Convolve(ConvolutionPass pass, const ConvolutionSteps& steps, const Tensor& x,
                const Tensor& w, const Tensor& y);

  // The graph of the operations so far. It is valid while this object lives.
  Descriptor Finish() const;

 private:
  enum class Kind { kMemory, kScalar, kVirtual };
  Tensor Make(int64_t id, const Dims& dims, const Dims& strides, DataType type, Kind kind);
  struct PointwiseInputs {
    const Tensor* x;
    const Tensor* b = nullptr;
    const Tensor* t = nullptr;
    int64_t axis = -1;
    DataType precision = DataType::kFloat;
  };
  Tensor AddPointwise(PointwiseMode mode, const PointwiseInputs& in, const Tensor& y);

  const Api& api_;
  std::deque<Descriptor> tensors_, rules_;
  std::vector<Descriptor> operations_;
  int64_t next_virtual_ = 100;
};

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_OPERATION_GRAPH_H_
