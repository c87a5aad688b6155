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
  if (moe_.expert_pieces == 0) return;
  EndSegment(prefix.substr(0, prefix.size() - 1));
  const int64_t each = moe_.num_experts / moe_.expert_pieces;
  for (int64_t e = 0; e < moe_.num_experts; e += each) {
    made.mixture.pieces.push_back(NewExperts(prefix, e, e + each));
    EndSegment(NameOfRows(prefix + NamesOf(moe_).moe + "experts", e, e + each, moe_.num_experts),
               /*keeps=*/e + each == moe_.num_experts);
  }
}

ExpertWeights Moe::NewExperts(const std::string& prefix, int64_t begin, int64_t end) {
  const ExpertNames names = NamesOf(moe_);
  const int64_t hidden = moe_.hidden_size, inner = moe_.moe_intermediate_size;
  std::vector<Rows> gate_up, down;
  for (int64_t e = begin; e < end; ++e) {
    const std::string expert = prefix + names.Expert(e);
    gate_up.insert(gate_up.end(), {{expert + names.gate, inner}, {expert + names.up, inner}});
    down.push_back({expert + names.down, hidden});
  }
  // `rows`: an expert's.
  const auto weights = [&](const std::string& name, const std::vector<Rows>& slices, int64_t rows,
                           int64_t in) {
    const std::string of_rows =
        NameOfRows(prefix + names.moe + name, begin * rows, end * rows, moe_.num_experts * rows);
    Parameter* const made = NewMatrix(of_rows, slices, in);
    made->HoldsExperts(end - begin);
    return made;
  };
  Parameter* const both = weights("experts.gate_up_proj", gate_up, 2 * inner, hidden);
  return {both, weights("experts.down_proj", down, hidden, inner)};
}

void Moe::AddMixture(const std::string& prefix, Layer& layer) {
  const ExpertNames names = NamesOf(moe_);
  const std::string moe = prefix + names.moe;
  const int64_t hidden = moe_.hidden_size, experts = moe_.num_experts;
  const std::string router = moe + names.router.substr(0, names.router.rfind(".weight"));
  ExpertLayer& m = layer.mixture;
  Parameter* const weight = NewMatrix(router, {{router, experts}}, hidden);
  weight->StayPlain();
  m.router = weight;
  if (moe_.expert_pieces == 0) m.pieces = {NewExperts(prefix, 0, experts)};
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
  const Var base = RunShared(tape, normed, x, l);
  return Experts(tape, normed, base, l.mixture, std::any_cast<const MixtureBatch&>(pass.own));
}

Var Moe::RunShared(Tape& tape, const Var& normed, const Var& x, const Layer& l) {
  if (!l.shared) return x;
  if (l.shared_gate == nullptr) return RunMlp(tape, *l.shared, normed, x);
  return GatedSharedExpert(tape, normed, x, {l.shared_gate, l.shared->gate_up_w, l.shared->down_w});
}

Var Moe::RunBlock(Tape& tape, const Var& x, const PassPtr& pass, int64_t layer,
                  int& segment) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  if (l.dense || moe_.expert_pieces == 0) {
    return Decoder::RunBlock(tape, x, pass, layer, segment);
  }
  const std::shared_ptr<ExpertRun> run = NewExpertRun();
  Var y = tape.Segment(
      segment++, x, /*recomputable=*/true, [this, &l, layer, pass, run](Tape& t, const Var& in) {
        const Var middle = Attend(t, in, *pass, layer);
        const Var normed = SecondNorm(t, middle, layer);
        return RouteToExperts(t, normed, RunShared(t, normed, middle, l), l.mixture,
                              std::any_cast<const MixtureBatch&>(pass->own), run);
      });
  WantGradients(*run, y.grad != nullptr);
  for (size_t i = 0; i < l.mixture.pieces.size(); ++i) {
    y = tape.Segment(segment++, y, /*recomputable=*/true, [&l, i, run](Tape& t, const Var& in) {
      return RunExperts(t, in, l.mixture, i, run);
    });
  }
  return y;
}

std::shared_ptr<Model> MakeMoe(const MoeConfig& config) { return std::make_shared<Moe>(config); }

}  // namespace fsdp
