// A convolution or one of its gradients (convolution.h) as a graph of one operation of cuDNN's.
// Tests: tests/trainer/ops/cudnn/convolution_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_GRAPH_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_GRAPH_H_

#include <cstdint>

#include "trainer/ops/convolution_shape.h"
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

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_GRAPH_H_
