#include "trainer/ops/cudnn/convolution_plan.h"

#include <string>

#include "trainer/ops/cudnn/convolution_graph.h"
#include "trainer/ops/cudnn/convolution_workspace.h"

namespace fsdp::cudnn {
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
