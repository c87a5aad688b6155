// Operations on tensors of four dimensions, put together for cuDNN to find one kernel for them all.
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

  // In memory that starts at a multiple of 16 bytes. The caller's ids are under 100.
  Tensor InMemory(int64_t id, const Dims& dims, const Dims& strides, DataType type);
  // One float of the host's memory, which is read when the graph is executed.
  Tensor Scalar(int64_t id);
  // Between two operations: in no memory.
  Tensor Virtual(const Dims& dims, DataType type = DataType::kFloat);
  Tensor Virtual(const Dims& dims, const Dims& strides, DataType type);

  // y = a b, of the last two dimensions; heads of b are those of a, or each is for a group of them.
  Tensor Matmul(const Tensor& a, const Tensor& b, const Tensor& y);
  Tensor Pointwise(PointwiseMode mode, const Tensor& x, const Tensor& y);
  Tensor Pointwise(PointwiseMode mode, const Tensor& x, const Tensor& b, const Tensor& y);
  Tensor Index(const Tensor& x, int64_t axis);  // int32.
  Tensor GreaterOrEqual(const Tensor& x, const Tensor& b);
  Tensor Select(const Tensor& x, const Tensor& otherwise, const Tensor& where);
  // Over the dimensions in which y has fewer elements: all of them, or groups of heads.
  Tensor Reduce(ReduceTensorOp op, const Tensor& x, const Tensor& y);
  // Of the same elements.
  Tensor Reshape(const Tensor& x, const Tensor& y);

  // The graph of the operations so far, for as long as this lives.
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
