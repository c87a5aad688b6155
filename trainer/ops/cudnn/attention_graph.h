// Attention and its gradients (attention.h), causal or full, as graphs of cuDNN's operations. cuDNN
// recognises such graphs as flash attention, by operations and order: both are those of NVIDIA's
// cudnn-frontend (scaled_dot_product_flash_attention.h, version 1.14).
// Tests: tests/trainer/ops/cudnn/attention_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_GRAPH_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_GRAPH_H_

#include <compare>
#include <cstdint>

#include "trainer/core/dtype.h"
#include "trainer/ops/attention_inputs.h"
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

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_GRAPH_H_
