#include "models/moe/moe.h"

#include <utility>

#include "models/moe/names.h"
#include "trainer/autograd/tape.h"

namespace fsdp {

Moe::Moe(const MoeConfig& config) : Decoder(config, config.qk_norm_all_heads), moe_(config) {
  Build();
}

void Moe::AddMlp(int64_t layer, const std::string& prefix) {
  Layer& made = layers_.emplace_back();
  if (moe_.IsDense(layer)) {
    made.dense = NewMlp(prefix + "mlp.", moe_.intermediate_size);
    return;
  }
  AddMixture(prefix, made);
}

void Moe::AddMixture(const std::string& prefix, Layer& layer) {
  const ExpertNames names = NamesOf(moe_);
  const std::string moe = prefix + names.moe;
  const int64_t hidden = moe_.hidden_size, inner = moe_.moe_intermediate_size;
  std::vector<Rows> gate_up, down;
  for (int64_t e = 0; e < moe_.num_experts; ++e) {
    const std::string expert = prefix + names.Expert(e);
    gate_up.insert(gate_up.end(), {{expert + names.gate, inner}, {expert + names.up, inner}});
    down.push_back({expert + names.down, hidden});
  }
  const std::string router = moe + names.router.substr(0, names.router.rfind(".weight"));
  ExpertLayer& m = layer.mixture;
  Parameter* const weight = NewMatrix(router, {{router, moe_.num_experts}}, hidden);
  weight->StayPlain();
  m.router = weight;
  const auto experts = [&](const char* name, const std::vector<Rows>& slices, int64_t in) {
    Parameter* const all = NewMatrix(moe + name, slices, in);
    all->HoldsExperts(moe_.num_experts);
    return all;
  };
  m.gate_up = experts("experts.gate_up_proj", gate_up, hidden);
  m.down = experts("experts.down_proj", down, inner);
  m.options = {.experts_per_token = moe_.num_experts_per_tok,
               .scores = moe_.scoring_func,
               .normalize = moe_.norm_topk_prob,
               .groups = moe_.n_group,
               .groups_kept = moe_.topk_group,
               .scale = moe_.routed_scaling_factor};
  const auto buffer = [&](const std::string& name, int64_t elements, ModelBuffer::Kind kind) {
    buffers_.push_back(std::make_unique<ModelBuffer>(moe + name, Shape{elements}, kind));
    AddBuffer(buffers_.back().get());
    return buffers_.back().get();
  };
  m.tally = buffer("tally", TallyElements(moe_.num_experts), ModelBuffer::Kind::kTally);
  if (moe_.score_correction_bias) {
    ModelBuffer* const bias = buffer(names.bias, moe_.num_experts, ModelBuffer::Kind::kBias);
    bias->Follow(*m.tally, *weight);
    m.bias = bias;
  }
  if (moe_.shared_expert_intermediate_size == 0) return;
  layer.shared = NewMlp(moe + names.shared, moe_.shared_expert_intermediate_size);
  if (!moe_.shared_expert_gate) return;
  const std::string gate = moe + names.shared_gate.substr(0, names.shared_gate.rfind(".weight"));
  Parameter* const row = NewMatrix(gate, {{gate, 1}}, hidden);
  row->StayPlain();
  layer.shared_gate = row;
}

std::any Moe::BeginPass(Tape& tape, const TokenBatch& batch, float scale) const {
  const auto mixtures = moe_.num_hidden_layers - std::ssize(moe_.dense_layers);
  return BatchOfMixtures(tape, batch, scale, mixtures);
}

Var Moe::RunMlp(Tape& tape, const Var& normed, const Var& x, const Pass& pass,
                int64_t layer) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  if (l.dense) return RunMlp(tape, *l.dense, normed, x);
  Var base = x;
  if (l.shared_gate != nullptr) {
    base =
        GatedSharedExpert(tape, normed, x, {l.shared_gate, l.shared->gate_up_w, l.shared->down_w});
  } else if (l.shared) {
    base = RunMlp(tape, *l.shared, normed, x);
  }
  return Experts(tape, normed, base, l.mixture, std::any_cast<const MixtureBatch&>(pass.own));
}

std::shared_ptr<Model> MakeMoe(const MoeConfig& config) { return std::make_shared<Moe>(config); }

}  // namespace fsdp
