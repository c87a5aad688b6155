#include "models/llama/decoder.h"

#include <initializer_list>
#include <utility>

#include "models/llama/rope.h"
#include "trainer/autograd/tape.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/rope.h"

namespace fsdp {

void Decoder::Build() {
  const bool tied = config_.tie_word_embeddings;
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  embedding_ = NewMatrix("model.embed_tokens", {{"model.embed_tokens", vocab}}, hidden);
  segments_.push_back({"model.embed_tokens",
                       false,
                       {embedding_},
                       /*own_unit=*/!tied,
                       /*read_in_backward=*/false});
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const std::string name = "model.layers." + std::to_string(i);
    new_parameters_.clear();
    blocks_.push_back(NewAttention(name + "."));
    AddMlp(i, name + ".");
    if (!new_parameters_.empty()) EndSegment(name);
  }
  norm_ = NewNorm("model.norm.weight", hidden);
  head_ = tied ? embedding_ : NewMatrix("lm_head", {{"lm_head", vocab}}, hidden);
  segments_.push_back({"head", false, {norm_}, /*own_unit=*/!tied});
  if (!tied) segments_.back().parameters.push_back(head_);
}

Parameter* Decoder::Add(std::unique_ptr<Parameter> parameter) {
  parameters_.push_back(std::move(parameter));
  new_parameters_.push_back(parameters_.back().get());
  return parameters_.back().get();
}

void Decoder::EndSegment(const std::string& name, bool keeps) {
  segments_.push_back({name, /*is_block=*/true, std::exchange(new_parameters_, {})});
  segments_.back().buffers = std::exchange(new_buffers_, {});
  segments_.back().keeps = keeps;
}

// Initial values as Hugging Face's LlamaPreTrainedModel has them; decay as for GPT-2: matrices, not
// biases and norms.
Parameter* Decoder::NewNorm(const std::string& name, int64_t size) {
  return Add(std::make_unique<Parameter>(name, Shape{size}, Init{1, 0}, /*decay=*/false));
}

Parameter* Decoder::NewMatrix(const std::string& name, const std::vector<Rows>& slices,
                              int64_t in) {
  const Init normal{0, static_cast<float>(config_.initializer_range)};
  std::vector<ParameterSlice> all;
  int64_t rows = 0;
  for (const Rows& s : slices) {
    all.push_back({s.name + ".weight", s.rows, normal, /*decay=*/true});
    rows += s.rows;
  }
  return Add(std::make_unique<Parameter>(name + ".weight", Shape{rows, in}, std::move(all)));
}

Parameter* Decoder::NewBias(const std::string& name, const std::vector<Rows>& slices, bool there) {
  if (!there) return nullptr;
  std::vector<ParameterSlice> all;
  int64_t rows = 0;
  for (const Rows& s : slices) {
    all.push_back({s.name + ".bias", s.rows, Init{}, /*decay=*/false});
    rows += s.rows;
  }
  return Add(std::make_unique<Parameter>(name + ".bias", Shape{rows}, std::move(all)));
}

Parameter* Decoder::NewHeadNorm(const std::string& name, int64_t heads) {
  if (norm_all_heads_) return NewNorm(name, heads * config_.head_dim);
  return config_.qk_norm ? NewNorm(name, config_.head_dim) : nullptr;
}

Decoder::Block Decoder::NewAttention(const std::string& prefix) {
  const LlamaConfig& c = config_;
  const int64_t hidden = c.hidden_size;
  const std::string attention = prefix + "self_attn.";
  const std::vector<Rows> qkv = {{attention + "q_proj", c.query_size()},
                                 {attention + "k_proj", c.key_value_size()},
                                 {attention + "v_proj", c.key_value_size()}};
  const std::vector<Rows> o = {{attention + "o_proj", hidden}};
  Block b;
  b.attention_norm = NewNorm(prefix + "input_layernorm.weight", hidden);
  b.qkv_w = NewMatrix(attention + "qkv_proj", qkv, hidden);
  b.qkv_b = NewBias(attention + "qkv_proj", qkv, c.attention_bias);
  b.q_norm = NewHeadNorm(attention + "q_norm.weight", c.num_attention_heads);
  b.k_norm = NewHeadNorm(attention + "k_norm.weight", c.num_key_value_heads);
  b.o_w = NewMatrix(attention + "o_proj", o, c.query_size());
  b.o_b = NewBias(attention + "o_proj", o, c.attention_output_bias);
  b.mlp_norm = NewNorm(prefix + "post_attention_layernorm.weight", hidden);
  return b;
}

Decoder::Mlp Decoder::NewMlp(const std::string& prefix, int64_t inner) {
  const std::vector<Rows> gate_up = {{prefix + "gate_proj", inner}, {prefix + "up_proj", inner}};
  const std::vector<Rows> down = {{prefix + "down_proj", config_.hidden_size}};
  Mlp mlp;
  mlp.gate_up_w = NewMatrix(prefix + "gate_up_proj", gate_up, config_.hidden_size);
  mlp.gate_up_b = NewBias(prefix + "gate_up_proj", gate_up, config_.mlp_bias);
  mlp.down_w = NewMatrix(prefix + "down_proj", down, inner);
  mlp.down_b = NewBias(prefix + "down_proj", down, config_.mlp_bias);
  return mlp;
}

Var Decoder::RunMlp(Tape& tape, const Mlp& mlp, const Var& normed, const Var& x) {
  Var m = Linear(tape, normed, *mlp.gate_up_w, kLayout, mlp.gate_up_b);
  m = Swiglu(tape, m);
  return LinearResidual(tape, m, *mlp.down_w, kLayout, mlp.down_b, x);
}

Var Decoder::Attend(Tape& tape, const Var& x, const Pass& pass, int64_t layer) const {
  const auto index = static_cast<size_t>(layer);
  const Block& b = blocks_[index];
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  Var a = RmsNorm(tape, x, *b.attention_norm, eps);
  a = Linear(tape, a, *b.qkv_w, kLayout, b.qkv_b);
  a = RotaryAttention(tape, a, pass.batch,
                      {config_.num_attention_heads, config_.num_key_value_heads},
                      {pass.rope_table, b.q_norm, b.k_norm, eps},
                      {.rate = pass.train ? config_.attention_dropout : 0, .layer = index});
  return LinearResidual(tape, a, *b.o_w, kLayout, b.o_b, x);
}

Var Decoder::SecondNorm(Tape& tape, const Var& x, int64_t layer) const {
  return RmsNorm(tape, x, *blocks_[static_cast<size_t>(layer)].mlp_norm,
                 static_cast<float>(config_.rms_norm_eps));
}

Var Decoder::RunBlock(Tape& tape, const Var& x, const PassPtr& pass, int64_t layer,
                      int& segment) const {
  return tape.Segment(segment++, x, /*recomputable=*/true,
                      [this, layer, pass](Tape& t, const Var& in) {
                        const Var middle = Attend(t, in, *pass, layer);
                        return RunMlp(t, SecondNorm(t, middle, layer), middle, *pass, layer);
                      });
}

Var Decoder::Hidden(Tape& tape, const TokenBatch& batch, float scale) const {
  // With a cache, that of the longest sequence it can hold, so that all of it is rotated alike.
  const int64_t seq = tape.cache() ? tape.cache()->capacity() : batch.tokens.shape[1];
  // Dropout acts also where a block's own tape does not record.
  const auto pass = std::make_shared<Pass>(Pass{.batch = batch, .train = tape.recording()});
  Var x = tape.Segment(0, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
    const RopeFrequencies rope = RopeFrequenciesOf(config_, seq);
    pass->rope_table = t.New(Shape{seq, 2, config_.head_dim / 2}, DType::kFloat32);
    RopeTable(t.stream(), rope.inverse, rope.attention_factor, pass->rope_table->view());
    pass->own = BeginPass(t, batch, scale);
    return Embed(t, *embedding_, batch);
  });
  int segment = 1;
  for (int64_t i = 0; i < std::ssize(blocks_); ++i) x = RunBlock(tape, x, pass, i, segment);
  return x;
}

Var Decoder::FinalNorm(Tape& tape, const Var& x) const {
  return RmsNorm(tape, x, *norm_, static_cast<float>(config_.rms_norm_eps));
}

void Decoder::Loss(Tape& tape, const Batch& batch, float scale, View loss) const {
  const TokenBatch tokens(batch);
  const Var x = Hidden(tape, tokens, scale);
  tape.Segment(HeadSegment(), x, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    HeadLoss(t, FinalNorm(t, in), *head_, tokens.targets, tokens.weights, scale, loss);
    return Var{};
  });
}

void Decoder::Logits(Tape& tape, const Batch& batch, int64_t column, View logits) const {
  const TokenBatch tokens(batch);
  const Var x = Hidden(tape, tokens, 0);
  tape.Segment(HeadSegment(), x, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    HeadLogits(t, FinalNorm(t, in), *head_, tokens, column, logits);
    return Var{};
  });
}

}  // namespace fsdp
