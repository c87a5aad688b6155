// Attention and its gradients (attention.h), causal or full, as graphs of cuDNN's operations, and
// the kernels for them. cuDNN recognises such graphs as flash attention, by operations and order:
// both are those of NVIDIA's cudnn-frontend (scaled_dot_product_flash_attention.h, version 1.14).
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_PLAN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_PLAN_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/cudnn/execution_plan.h"
#include "trainer/ops/cudnn/operation_graph.h"

namespace fsdp::cudnn {

// Everything that a graph is made of, and so everything that a plan depends on.
struct AttentionProblem {
  bool backward = false, deterministic = false;
  DType dtype = DType::kBFloat16;  // Or fp16.
  AttentionDims dims = {};
  AttentionMask mask = AttentionMask::kCausal;
  // Elements from a row of a head to the next; a sample's rows follow those of the one before. Rows
  // of out and dout are heads x head_dim apart.
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  int64_t dq_stride = 0, dk_stride = 0, dv_stride = 0;

  auto operator<=>(const AttentionProblem&) const = default;
};

// The ids of the tensors that a graph reads and writes.
enum AttentionTensor : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kRowDots,  // dout . out, fp32; scratch, as is
  kDqSums,   // dq in fp32, where blocks add to it.
  // In the host's memory:
  kScale,             // Multiplies q . k.
  kNegativeInfinity,  // Replaces the scores above the diagonal.
  kOne,
};

OperationGraph AttentionGraph(const Api& api, const AttentionProblem& problem);

// A kernel of cuDNN's for an AttentionProblem, chosen and compiled for one GPU.
class AttentionPlan {
 public:
  // Takes the first plan that cuDNN's heuristic names among those that need no more memory than
  // attention_cudnn.h plans for, and compiles it: about half a second. Throws DeviceError where
  // there is none, with cuDNN's reason.
  AttentionPlan(const Api& api, const Descriptor& gpu, const AttentionProblem& problem);

  // Enqueues the plan on the handle's stream. `operands`: the addresses of all tensors that the
  // graph has in memory, at multiples of 16 bytes. `scale`: multiplies q . k. `workspace`:
  // workspace_bytes(). Throws DeviceError.
  using Operands = std::vector<std::pair<AttentionTensor, const std::byte*>>;
  void Execute(Handle handle, const Operands& operands, float scale, std::byte* workspace) const;

  int64_t workspace_bytes() const { return plan_.workspace_bytes(); }
  int64_t engine() const { return plan_.engine(); }  // cuDNN's number of the engine.

 private:
  const bool backward_;
  const OperationGraph operations_;
  const Descriptor graph_;
  const ExecutionPlan plan_;
  const bool masked_;
  const float negative_infinity_, one_ = 1;
};

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_PLAN_H_
