#include "models/gpt2/gpt2.h"

#include <cmath>
#include <string>

#include "trainer/autograd/tape.h"
#include "trainer/nn/layers.h"

namespace fsdp {

Gpt2::Gpt2(const Gpt2Config& config) : config_(config) {
  const int64_t c = config.hidden_size, inner = config.intermediate_size;
  // Section 2.3 of the paper: residual projections are scaled by 1 / sqrt(number of residual
  // layers), of which a block has two. Positions as Hugging Face's GPT2PreTrainedModel has them.
  const auto stddev = static_cast<float>(config.initializer_range);
  const Init zeros{0, 0}, ones{1, 0}, normal{0, stddev};
  const Init residual{0, stddev / std::sqrt(2.0f * static_cast<float>(config.num_hidden_layers))};
  const std::string root = "transformer.";
  wte_ = New(root + "wte.weight", Shape{config.vocab_size, c}, normal);
  wpe_ = New(root + "wpe.weight", Shape{config.max_position_embeddings, c}, normal);
  const bool tied = config.tie_word_embeddings;
  segments_.push_back({"embedding",
                       false,
                       {wte_, wpe_},
                       /*own_unit=*/!tied,
                       /*read_in_backward=*/false});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string h = root + "h." + std::to_string(i) + ".";
    Block b;
    b.ln_1_w = New(h + "ln_1.weight", Shape{c}, ones);
    b.ln_1_b = New(h + "ln_1.bias", Shape{c}, zeros);
    b.qkv_w = New(h + "attn.c_attn.weight", Shape{c, 3 * c}, normal);
    b.qkv_w->HoldsSideBySide(3);
    b.qkv_b = New(h + "attn.c_attn.bias", Shape{3 * c}, zeros);
    b.attn_w = New(h + "attn.c_proj.weight", Shape{c, c}, residual);
    b.attn_b = New(h + "attn.c_proj.bias", Shape{c}, zeros);
    b.ln_2_w = New(h + "ln_2.weight", Shape{c}, ones);
    b.ln_2_b = New(h + "ln_2.bias", Shape{c}, zeros);
    b.fc_w = New(h + "mlp.c_fc.weight", Shape{c, inner}, normal);
    b.fc_b = New(h + "mlp.c_fc.bias", Shape{inner}, zeros);
    b.proj_w = New(h + "mlp.c_proj.weight", Shape{inner, c}, residual);
    b.proj_b = New(h + "mlp.c_proj.bias", Shape{c}, zeros);
    blocks_.push_back(b);
    segments_.push_back({"h." + std::to_string(i),
                         true,
                         {b.ln_1_w, b.ln_1_b, b.qkv_w, b.qkv_b, b.attn_w, b.attn_b, b.ln_2_w,
                          b.ln_2_b, b.fc_w, b.fc_b, b.proj_w, b.proj_b}});
  }
  ln_f_w_ = New(root + "ln_f.weight", Shape{c}, ones);
  ln_f_b_ = New(root + "ln_f.bias", Shape{c}, zeros);
  head_ = tied ? wte_ : New("lm_head.weight", Shape{config.vocab_size, c}, normal);
  segments_.push_back({"head", false, {ln_f_w_, ln_f_b_}, /*own_unit=*/!tied});
  if (!tied) segments_.back().parameters.push_back(head_);
}

// Decay as nanoGPT and llm.c have it: matrices and embeddings, not biases and norms.
Parameter* Gpt2::New(const std::string& name, const Shape& shape, Init init) {
  parameters_.push_back(
      std::make_unique<Parameter>(name, shape, init, /*decay=*/shape.rank() == 2));
  return parameters_.back().get();
}

Var Gpt2::RunBlock(Tape& tape, const Var& x, const TokenBatch& batch, size_t layer,
                   bool train) const {
  const Block& b = blocks_[layer];
  const auto eps = static_cast<float>(config_.layer_norm_epsilon);
  constexpr WeightLayout kLayout = WeightLayout::kInOut;
  // Site 0 is the embedding.
  const auto project = [&](const Var& branch, const Parameter& w, const Parameter* bias,
                           const Var& residual, uint32_t which) {
    const double rate = config_.residual_dropout;
    if (!train || rate == 0) return LinearResidual(tape, branch, w, kLayout, bias, residual);
    const Var y = Linear(tape, branch, w, kLayout, bias);
    const uint32_t site = 1 + 2 * static_cast<uint32_t>(layer) + which;
    return Residual(tape, residual, Dropout(tape, y, batch.sample_keys, site, rate));
  };
  Var a = LayerNorm(tape, x, *b.ln_1_w, *b.ln_1_b, eps);
  a = Linear(tape, a, *b.qkv_w, kLayout, b.qkv_b);
  const int64_t heads = config_.num_attention_heads;
  a = CausalAttention(tape, a, batch, {heads, heads},
                      {.rate = train ? config_.attention_dropout : 0, .layer = layer});
  const Var middle = project(a, *b.attn_w, b.attn_b, x, 0);
  Var m = LayerNorm(tape, middle, *b.ln_2_w, *b.ln_2_b, eps);
  m = LinearGelu(tape, m, *b.fc_w, kLayout, b.fc_b);
  return project(m, *b.proj_w, b.proj_b, middle, 1);
}

Var Gpt2::Hidden(Tape& tape, const TokenBatch& batch) const {
  const bool train = tape.recording();  // Also where a block's own tape does not record.
  Var x = tape.Segment(0, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
    const Var sum = Embed(t, *wte_, *wpe_, batch);
    const double rate = config_.embedding_dropout;
    return train && rate > 0 ? Dropout(t, sum, batch.sample_keys, /*site=*/0, rate) : sum;
  });
  for (size_t i = 0; i < blocks_.size(); ++i) {
    x = tape.Segment(static_cast<int>(i) + 1, x, /*recomputable=*/true,
                     [this, i, train, batch](Tape& t, const Var& in) {
                       return RunBlock(t, in, batch, i, train);
                     });
  }
  return x;
}

void Gpt2::Loss(Tape& tape, const Batch& batch, float scale, View loss) const {
  const TokenBatch tokens(batch);
  const Var x = Hidden(tape, tokens);
  tape.Segment(HeadSegment(), x, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    const Var y =
        LayerNorm(t, in, *ln_f_w_, *ln_f_b_, static_cast<float>(config_.layer_norm_epsilon));
    HeadLoss(t, y, *head_, tokens.targets, tokens.weights, scale, loss);
    return Var{};
  });
}

void Gpt2::Logits(Tape& tape, const Batch& batch, int64_t column, View logits) const {
  const TokenBatch tokens(batch);
  const Var x = Hidden(tape, tokens);
  tape.Segment(HeadSegment(), x, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    const Var y =
        LayerNorm(t, in, *ln_f_w_, *ln_f_b_, static_cast<float>(config_.layer_norm_epsilon));
    HeadLogits(t, y, *head_, tokens, column, logits);
    return Var{};
  });
}

std::shared_ptr<Model> MakeGpt2(const Gpt2Config& config) { return std::make_shared<Gpt2>(config); }

}  // namespace fsdp
