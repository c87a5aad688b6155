// A kernel of cuDNN's for an AttentionProblem, chosen and compiled for one GPU.
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_PLAN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/ops/cudnn/attention_graph.h"
#include "trainer/ops/cudnn/descriptor.h"

namespace fsdp::cudnn {

// The GPU that plans are for: the handle's, the host's `gpu`-th, or one that this host lacks, by a
// description that cuDNN wrote (JSON). All throw DeviceError.
Descriptor DevicePropertiesOf(const Api& api, Handle handle);
Descriptor DevicePropertiesOf(const Api& api, int gpu);
Descriptor DevicePropertiesOf(const Api& api, const std::string& description);

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

  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t engine() const { return engine_; }  // cuDNN's number of the engine.

 private:
  bool Take(const Descriptor& gpu, const Descriptor& config);

  const Api& api_;
  const bool backward_, deterministic_;
  const int64_t planned_bytes_;
  const OperationGraph operations_;
  const Descriptor graph_;
  std::vector<Descriptor> plan_;  // One.
  int64_t workspace_bytes_ = 0, engine_ = -1;
  std::string refusals_;
  const bool masked_;
  float negative_infinity_, one_ = 1;
};

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_PLAN_H_
