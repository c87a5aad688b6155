#include "trainer/ops/cudnn/convolution_graph.h"

#include "trainer/core/check.h"

namespace fsdp::cudnn {
namespace {

using Pass = ConvolutionCall::Pass;

DataType DataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return DataType::kFloat;
    case DType::kBFloat16:
      return DataType::kBFloat16;
    default:
      FSDP_CHECK(dtype == DType::kFloat16);
      return DataType::kHalf;
  }
}

OperationGraph::ConvolutionPass PassOf(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return OperationGraph::ConvolutionPass::kForward;
    case Pass::kDx:
      return OperationGraph::ConvolutionPass::kBackwardData;
    default:
      return OperationGraph::ConvolutionPass::kBackwardFilter;
  }
}

// Strides of [n, channels, height, width] whose channels lie side by side.
Dims ChannelsLast(const Dims& d) { return {d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]}; }

}  // namespace

OperationGraph ConvolutionGraph(const Api& api, const ConvolutionCall& call) {
  const ConvolutionShape& s = call.shape;
  OperationGraph graph(api);
  const auto in_memory = [&](ConvolutionTensor id, const Dims& dims, DType dtype) {
    return graph.InMemory(id, dims, ChannelsLast(dims), DataTypeOf(dtype));
  };
  const Tensor x = in_memory(kX, {s.samples, s.in, s.height, s.width}, call.x);
  const Tensor w =
      in_memory(kWeights, {s.out, s.group_in(), s.kernel_height, s.kernel_width}, call.w);
  const Tensor y = in_memory(kResults, {s.samples, s.out, s.out_height(), s.out_width()}, call.x);
  graph.Convolve(PassOf(call.pass),
                 {.stride = {s.window.stride, s.window.stride},
                  .padding = {s.window.padding_height, s.window.padding_width}},
                 x, w, y);
  return graph;
}

}  // namespace fsdp::cudnn
