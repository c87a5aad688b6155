#include "trainer/ops/cudnn/attention_plan.h"

#include <limits>
#include <string>

#include "trainer/ops/cudnn/attention_workspace.h"

namespace fsdp::cudnn {
namespace {

PlanLimits LimitsOf(const AttentionProblem& p) {
  PlanLimits limits{.bytes = p.backward ? CudnnBackwardWorkspace(p.dims, p.deterministic).plan
                                        : CudnnForwardWorkspace(p.dims).plan};
  if (p.deterministic) limits.refused.push_back(NumericalNote::kNondeterministic);
  return limits;
}

std::string NameOf(const AttentionProblem& p) {
  return std::string("cuDNN: attention ") + (p.backward ? "backward" : "forward") + " of " +
         std::to_string(p.dims.batch) + " x " + std::to_string(p.dims.seq) + " tokens, " +
         (p.mask == AttentionMask::kFull ? std::to_string(p.dims.keys) + " keys, " : "") +
         std::to_string(p.dims.heads) + ":" + std::to_string(p.dims.kv_heads) + " x " +
         std::to_string(p.dims.head_dim);
}

}  // namespace

AttentionPlan::AttentionPlan(const Api& api, const Descriptor& gpu, const AttentionProblem& problem)
    : backward_(problem.backward),
      operations_(AttentionGraph(api, problem)),
      graph_(operations_.Finish()),
      plan_(api, gpu, graph_, LimitsOf(problem), NameOf(problem)),
      masked_(problem.mask == AttentionMask::kCausal),
      negative_infinity_(-std::numeric_limits<float>::infinity()) {}

void AttentionPlan::Execute(Handle handle, const Operands& operands, float scale,
                            std::byte* workspace) const {
  GraphOperands all;
  for (const auto& [id, address] : operands) all.Add(id, address);
  all.Add(kScale, &scale);
  if (masked_) all.Add(kNegativeInfinity, &negative_infinity_);
  if (backward_) all.Add(kOne, &one_);
  plan_.Execute(handle, all, workspace, "attention");
}

}  // namespace fsdp::cudnn
