#include "trainer/ops/cudnn/convolution_plan.h"

#include <string>

#include "trainer/core/check.h"
#include "trainer/ops/cudnn/convolution_cudnn.h"

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

namespace {

using Pass = ConvolutionCall::Pass;

PlanLimits LimitsOf(const ConvolutionCall& call) {
  using Note = NumericalNote;
  PlanLimits limits{.bytes = CudnnWorkspaceOf(call).plan,
                    .refused = {Note::kNondeterministic, Note::kReducedPrecisionReduction,
                                Note::kFft, Note::kWinograd, Note::kWinogradTile4x4,
                                Note::kWinogradTile6x6, Note::kWinogradTile13x13}};
  if (call.x == DType::kFloat32) {
    limits.refused.insert(limits.refused.end(), {Note::kTensorCore, Note::kDownConvertInputs});
  }
  return limits;
}

std::string NameOf(const ConvolutionCall& call) {
  const ConvolutionShape& s = call.shape;
  const auto by = [](int64_t a, int64_t b) {
    return std::to_string(a) + " x " + std::to_string(b);
  };
  const char* const pass =
      call.pass == Pass::kForward ? "" : (call.pass == Pass::kDx ? "dx of a " : "dw of a ");
  return std::string("cuDNN: ") + pass + "convolution of " + std::to_string(s.samples) + " x " +
         by(s.height, s.width) + " x " + std::to_string(s.in) + " by " +
         by(s.kernel_height, s.kernel_width) + " to " + std::to_string(s.out) + ", stride " +
         std::to_string(s.window.stride) + ", padding " +
         by(s.window.padding_height, s.window.padding_width) + ", " +
         std::to_string(s.window.groups) + " groups, " + std::string(Name(call.x));
}

}  // namespace

ConvolutionPlan::ConvolutionPlan(const Api& api, const Descriptor& gpu, const ConvolutionCall& call)
    : operations_(ConvolutionGraph(api, call)),
      graph_(operations_.Finish()),
      plan_(api, gpu, graph_, LimitsOf(call), NameOf(call)) {}

void ConvolutionPlan::Execute(Handle handle, const std::byte* x, const std::byte* weights,
                              const std::byte* results, std::byte* workspace) const {
  GraphOperands operands;
  operands.Add(kX, x);
  operands.Add(kWeights, weights);
  operands.Add(kResults, results);
  plan_.Execute(handle, operands, workspace, "convolution");
}

}  // namespace fsdp::cudnn
