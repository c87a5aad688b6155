// Operations on tensors of four dimensions, joined into a graph that cuDNN runs by one kernel.
// Tests: tests/trainer/ops/cudnn/attention_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_OPERATION_GRAPH_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_OPERATION_GRAPH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "trainer/ops/cudnn/descriptor.h"

namespace fsdp::cudnn {

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
