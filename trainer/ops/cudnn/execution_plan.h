// A kernel of cuDNN's for a graph of operations, chosen and compiled for one GPU, and the handle by
// which a thread runs it.
// Tests: tests/trainer/ops/cudnn/attention_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_EXECUTION_PLAN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_EXECUTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/ops/cudnn/cudnn_api.h"
#include "trainer/ops/cudnn/operation_graph.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp::cudnn {

// The GPU that plans are for: the handle's, the host's `gpu`-th, or one that this host lacks, by a
// description that cuDNN wrote (JSON). All throw DeviceError.
Descriptor DevicePropertiesOf(const Api& api, Handle handle);
Descriptor DevicePropertiesOf(const Api& api, int gpu);
Descriptor DevicePropertiesOf(const Api& api, const std::string& description);

// The plans that a caller can use.
struct PlanLimits {
  int64_t bytes = 0;                        // Most bytes of a plan's own workspace.
  std::vector<NumericalNote> refused = {};  // No engine with one of these.
};

// The tensors of a graph that are in memory, and its scalars, which are in the host's memory.
struct GraphOperands {
  std::vector<int64_t> ids;
  std::vector<const void*> addresses;

  void Add(int64_t id, const void* address) {
    ids.push_back(id);
    addresses.push_back(address);
  }
};

class ExecutionPlan {
 public:
  // Takes the first plan that cuDNN's heuristic names within `limits`, and compiles it. `graph`
  // outlives the plan. `name`: for the error. Throws DeviceError where there is none, with cuDNN's
  // reasons.
  ExecutionPlan(const Api& api, const Descriptor& gpu, const Descriptor& graph,
                const PlanLimits& limits, const std::string& name);

  // Enqueues the plan on the handle's stream. `workspace`: workspace_bytes() at a multiple of 16.
  // `what`: for the error. Throws DeviceError.
  void Execute(Handle handle, const GraphOperands& operands, std::byte* workspace,
               const char* what) const;

  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t engine() const { return engine_; }  // cuDNN's number of the engine.

 private:
  // Empty: the plan was taken. Otherwise why not.
  std::string Take(const Descriptor& gpu, const Descriptor& config, const PlanLimits& limits);

  const Api& api_;
  std::vector<Descriptor> plan_;  // One.
  int64_t workspace_bytes_ = 0, engine_ = -1;
};

// A thread's handle of cuDNN. A rank is a thread, and has one GPU as long as it lives, so nothing
// is shared between threads.
class ThreadHandle {
 public:
  // The first call of a thread makes its handle, for the GPU that is current, and takes some of the
  // GPU's memory. The handle is never closed, because a thread may end after the GPU's context.
  // Throws DeviceError.
  static ThreadHandle& Get();

  const Api& api() const { return api_; }
  const Descriptor& gpu() const { return gpu_; }
  // The handle for one call, whose work goes to `stream`. Throws DeviceError.
  Handle On(CudaStreamHandle stream) const;

 private:
  ThreadHandle();

  const Api& api_;
  const Handle handle_;
  const Descriptor gpu_;
};

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_EXECUTION_PLAN_H_
