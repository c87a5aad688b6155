// A kernel of cuDNN's for an AttentionProblem, chosen and compiled for one GPU.
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_PLAN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/ops/cudnn/attention_graph.h"
#include "trainer/ops/cudnn/execution_plan.h"

namespace fsdp::cudnn {

class AttentionPlan {
 public:
  // Takes the first plan that cuDNN's heuristic names among those that need no more memory than
  // attention_workspace.h plans for, and compiles it: about half a second. Throws DeviceError where
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
