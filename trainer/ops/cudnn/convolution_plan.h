// A convolution or one of its gradients (convolution.h) as a graph of one operation of cuDNN's, and
// the kernel for it.
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_PLAN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "trainer/ops/convolution_shape.h"
#include "trainer/ops/cudnn/execution_plan.h"
#include "trainer/ops/cudnn/operation_graph.h"

namespace fsdp::cudnn {

// The ids of a graph's tensors. Images: [samples, height, width, channels] in memory. Weights:
// [out, height, width, in / groups] in memory, unlike those of convolution.h. All are of one dtype:
// for bf16 and fp16 cuDNN 9.19 has no kernel with groups that leaves the sums of dw in fp32.
enum ConvolutionTensor : int64_t {
  kX = 1,    // x or dx.
  kWeights,  // w or dw.
  kResults,  // y or dy.
};

OperationGraph ConvolutionGraph(const Api& api, const ConvolutionCall& call);

// A kernel of cuDNN's for a ConvolutionCall, chosen and compiled for one GPU.
class ConvolutionPlan {
 public:
  // Takes the first plan that cuDNN's heuristic names among those that leave the same bits in each
  // run, sum in fp32 without a transform of the inputs (Winograd, FFT), multiply fp32 as it is, not
  // as TF32, and want no more memory than convolution_cudnn.h plans for. Throws DeviceError
  // where there is none, with cuDNN's reasons.
  ConvolutionPlan(const Api& api, const Descriptor& gpu, const ConvolutionCall& call);

  // Enqueues the plan on the handle's stream. All addresses are multiples of 16. Throws
  // DeviceError.
  void Execute(Handle handle, const std::byte* x, const std::byte* weights,
               const std::byte* results, std::byte* workspace) const;

  int64_t workspace_bytes() const { return plan_.workspace_bytes(); }
  int64_t engine() const { return plan_.engine(); }  // cuDNN's number of the engine.

 private:
  const OperationGraph operations_;
  const Descriptor graph_;
  const ExecutionPlan plan_;
};

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_PLAN_H_
