#include "models/t5/t5.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "models/field.h"
#include "models/t5/relative_buckets.h"
#include "trainer/autograd/kv_cache.h"
#include "trainer/autograd/tape.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/elementwise.h"

namespace fsdp {
namespace {

constexpr WeightLayout kLayout = WeightLayout::kOutIn;

// Sites of a stack's dropouts: two of its own, then those of each layer.
enum Site : uint32_t { kEmbedding, kOutput, kOwnSites };
enum LayerSite : uint32_t { kAttention, kCross, kInner, kMlp, kLayerSites };

uint32_t SiteOf(uint32_t first, size_t layer, LayerSite site) {
  return first + kOwnSites + kLayerSites * static_cast<uint32_t>(layer) + site;
}

// The standard deviation of a matrix with so many inputs.
double StddevOf(int64_t inputs) { return 1 / std::sqrt(static_cast<double>(inputs)); }

// 1 on the diagonal, 0 elsewhere. A row and a 1 are one more than a row: the pattern is copied on.
void FillIdentity(Stream& stream, const View& square) {
  const int64_t n = square.shape[0], all = n * n;
  const View flat = square.Reshape(Shape{all});
  Fill(stream, 0, flat);
  Fill(stream, 1, flat.Slice(0, 1));
  for (int64_t done = n + 1; done < all;) {
    const int64_t count = std::min(done, all - done);
    Copy(stream, flat.Slice(0, count), flat.Slice(done, count));
    done += count;
  }
}

}  // namespace

// Initial values as Hugging Face's T5PreTrainedModel has them; decay as for GPT-2: matrices, not
// norms.
T5::T5(const T5Config& config) : config_(config) {
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  const int64_t buckets = config.relative_attention_num_buckets;
  const bool tied = config.tie_word_embeddings;
  shared_ = NewMatrix("shared", {{"shared", vocab, 1}}, hidden);
  for (Stack* stack : {&encoder_, &decoder_}) {
    const std::string name = stack->name + ".block.0.layer.0.SelfAttention.relative_attention_bias";
    stack->table = NewMatrix(name, {{name, buckets, StddevOf(hidden)}}, config.num_attention_heads);
  }
  segments_.push_back({"shared", false, {shared_, encoder_.table, decoder_.table}});
  AddBlocks(encoder_, config.num_hidden_layers);
  encoder_.norm = NewNorm("encoder.final_layer_norm.weight");
  segments_.push_back({"encoder.final_layer_norm", false, {encoder_.norm}});

  decoder_.segment = static_cast<int>(segments_.size());
  decoder_.first_site = SiteOf(0, encoder_.blocks.size(), LayerSite{});
  decoder_.first_layer = encoder_.blocks.size();
  segments_.push_back({.name = "decoder", .parameters = {}, .reads = {shared_}});
  AddBlocks(decoder_, config.num_decoder_layers);
  decoder_.norm = NewNorm("decoder.final_layer_norm.weight");
  head_ = tied ? shared_ : NewMatrix("lm_head", {{"lm_head", vocab, 1}}, hidden);
  segments_.push_back({"head", false, {decoder_.norm}});
  (tied ? segments_.back().reads : segments_.back().parameters).push_back(head_);
}

Parameter* T5::Add(std::unique_ptr<Parameter> parameter) {
  parameters_.push_back(std::move(parameter));
  return parameters_.back().get();
}

Parameter* T5::NewNorm(const std::string& name) {
  const Init ones{static_cast<float>(config_.initializer_factor), 0};
  return Add(std::make_unique<Parameter>(name, Shape{config_.hidden_size}, ones, /*decay=*/false));
}

Parameter* T5::NewMatrix(const std::string& name, const std::vector<Rows>& slices, int64_t in) {
  std::vector<ParameterSlice> all;
  int64_t rows = 0;
  for (const Rows& s : slices) {
    const Init normal{0, static_cast<float>(config_.initializer_factor * s.stddev)};
    all.push_back({s.name + ".weight", s.rows, normal, /*decay=*/true});
    rows += s.rows;
  }
  return Add(std::make_unique<Parameter>(name + ".weight", Shape{rows, in}, std::move(all)));
}

T5::Block T5::NewBlock(const std::string& prefix, bool crosses) {
  const T5Config& c = config_;
  const int64_t hidden = c.hidden_size, inner = c.inner_size(), wide = c.intermediate_size;
  const double of_hidden = StddevOf(hidden);
  const double of_inner = StddevOf(inner);
  const double of_wide = StddevOf(wide);
  const double of_q = StddevOf(hidden * c.head_dim);
  const auto layer = [&](int i) { return prefix + "layer." + std::to_string(i) + "."; };
  Block b{};
  const std::string self = layer(0) + "SelfAttention.";
  b.attention_norm = NewNorm(layer(0) + "layer_norm.weight");
  b.qkv = NewMatrix(
      self + "qkv",
      {{self + "q", inner, of_q}, {self + "k", inner, of_hidden}, {self + "v", inner, of_hidden}},
      hidden);
  b.o = NewMatrix(self + "o", {{self + "o", hidden, of_inner}}, inner);
  if (crosses) {
    const std::string cross = layer(1) + "EncDecAttention.";
    b.cross_norm = NewNorm(layer(1) + "layer_norm.weight");
    b.q = NewMatrix(cross + "q", {{cross + "q", inner, of_q}}, hidden);
    b.kv = NewMatrix(cross + "kv",
                     {{cross + "k", inner, of_hidden}, {cross + "v", inner, of_hidden}}, hidden);
    b.cross_o = NewMatrix(cross + "o", {{cross + "o", hidden, of_inner}}, inner);
  }
  const std::string last = layer(crosses ? 2 : 1), mlp = last + "DenseReluDense.";
  b.mlp_norm = NewNorm(last + "layer_norm.weight");
  std::vector<Rows> wi = {{mlp + "wi", wide, of_hidden}};
  if (c.gated_mlp) wi = {{mlp + "wi_0", wide, of_hidden}, {mlp + "wi_1", wide, of_hidden}};
  b.wi = NewMatrix(mlp + "wi", wi, hidden);
  b.wo = NewMatrix(mlp + "wo", {{mlp + "wo", hidden, of_wide}}, wide);
  return b;
}

void T5::AddBlocks(Stack& stack, int64_t layers) {
  for (int64_t i = 0; i < layers; ++i) {
    const std::string name = stack.name + ".block." + std::to_string(i);
    const size_t first = parameters_.size();
    stack.blocks.push_back(NewBlock(name + ".", /*crosses=*/&stack == &decoder_));
    segments_.push_back({.name = name, .is_block = true, .parameters = {}, .reads = {stack.table}});
    for (size_t p = first; p < parameters_.size(); ++p) {
      segments_.back().parameters.push_back(parameters_[p].get());
    }
  }
}

int64_t T5::max_positions() const { return kMaxPositions; }

BatchSpec T5::Inputs(int64_t length) const {
  const int64_t target = config_.target_length > 0 ? config_.target_length : length;
  return PairInputs(length, target, config_.vocab_size);
}

T5::Aids T5::AidsOf(Tape& tape, const Stack& stack, int64_t length) const {
  const int64_t heads = config_.num_attention_heads;
  Aids aids{tape.New(Shape{heads, heads}, tape.activations()),
            tape.New(Shape{std::max<int64_t>(0, 2 * length - 1)}, DType::kInt32)};
  FillIdentity(tape.stream(), aids.identity->view());
  FillBuckets(tape.stream(),
              {config_.relative_attention_num_buckets, config_.relative_attention_max_distance,
               stack.bidirectional},
              1 - length, aids.buckets->view());
  return aids;
}

Var T5::Embedded(Tape& tape, const Stack& stack, const TokenBatch& tokens, bool train,
                 Aids& aids) const {
  const KvCache* const cache = tape.cache();
  aids = AidsOf(tape, stack, cache != nullptr ? cache->capacity() : tokens.tokens.shape[1]);
  Var x = Embed(tape, *shared_, tokens);
  const double rate = config_.dropout_rate;
  if (!train || rate == 0) return x;
  return Dropout(tape, x, tokens.sample_keys, stack.first_site + kEmbedding, rate);
}

Var T5::RunBlock(Tape& tape, const Var& x, const Var& encoded, const PairBatch& fed,
                 const Stack& stack, size_t layer, const Aids& aids, bool train) const {
  const Block& b = stack.blocks[layer];
  const TokenBatch& tokens = stack.bidirectional ? fed.encoder : fed.decoder;
  const View& keys = tokens.sample_keys;
  const int64_t rows = tokens.tokens.shape[0];
  const AttentionHeads heads{config_.num_attention_heads, config_.num_attention_heads};
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const double rate = train ? config_.dropout_rate : 0;
  const auto drop = [&](const Var& v, LayerSite site) {
    return Dropout(tape, v, keys, SiteOf(stack.first_site, layer, site), rate);
  };
  const auto add = [&](const Var& branch, const Parameter& w, const Var& residual, LayerSite site) {
    if (rate == 0) return LinearResidual(tape, branch, w, kLayout, nullptr, residual);
    return Residual(tape, residual, drop(Linear(tape, branch, w, kLayout, nullptr), site));
  };
  const auto attention = [&](size_t which) {
    const size_t each = stack.bidirectional ? 1 : 2;
    return ProbabilityDropout{rate, stack.first_layer + each * layer + which};
  };

  Attending self{.scale = 1.0f, .buckets = aids.buckets, .sample_keys = keys};
  self.bias = Linear(tape, Var(aids.identity, nullptr), *stack.table, kLayout, nullptr);
  if (stack.bidirectional) {
    self.lengths = fed.lengths;
  } else {
    self.mask = AttentionMask::kCausal;
    self.positions = tokens.positions;
  }
  Var a = RmsNorm(tape, x, *b.attention_norm, eps);
  a = Linear(tape, a, *b.qkv, kLayout, nullptr);
  a = SelfAttention(tape, a, rows, heads, self, attention(0));
  Var y = add(a, *b.o, x, kAttention);
  if (!stack.bidirectional) {
    Var q = RmsNorm(tape, y, *b.cross_norm, eps);
    q = Linear(tape, q, *b.q, kLayout, nullptr);
    const auto kv = [&] { return Linear(tape, encoded, *b.kv, kLayout, nullptr); };
    const Attending cross{.lengths = fed.lengths, .scale = 1.0f, .sample_keys = keys};
    a = CrossAttention(tape, q, kv, rows, heads, cross, attention(1));
    y = add(a, *b.cross_o, y, kCross);
  }
  Var m = RmsNorm(tape, y, *b.mlp_norm, eps);
  m = Linear(tape, m, *b.wi, kLayout, nullptr);
  if (config_.gated_mlp) {
    m = GatedGelu(tape, m);
    if (rate > 0) m = drop(Scaled(tape, m, 1), kInner);  // A copy is dropped: it is cheap.
  } else {
    m = Relu(tape, m);
    if (rate > 0) m = drop(m, kInner);  // ReLU's backward reads what is above 0 where it was.
  }
  return add(m, *b.wo, y, kMlp);
}

Var T5::FinalNorm(Tape& tape, const Var& x, const Stack& stack, const View& keys,
                  bool train) const {
  Var y = RmsNorm(tape, x, *stack.norm, static_cast<float>(config_.rms_norm_eps));
  const double rate = config_.dropout_rate;
  if (!train || rate == 0) return y;
  return Dropout(tape, Scaled(tape, y, 1), keys, stack.first_site + kOutput, rate);
}

Var T5::Encoded(Tape& tape, const PairBatch& fed, bool train) const {
  Aids aids;  // They live as long as a block may need them.
  Var x = tape.Segment(encoder_.segment, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
    return Embedded(t, encoder_, fed.encoder, train, aids);
  });
  int segment = encoder_.segment;
  for (size_t i = 0; i < encoder_.blocks.size(); ++i) {
    x = tape.Segment(++segment, x, /*recomputable=*/true,
                     [this, i, train, fed, aids](Tape& t, const Var& in) {
                       return RunBlock(t, in, Var(), fed, encoder_, i, aids, train);
                     });
  }
  return tape.Segment(++segment, x, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    return FinalNorm(t, in, encoder_, fed.encoder.sample_keys, train);
  });
}

void T5::PassEncoder(Tape& tape) const {
  for (int segment = encoder_.segment; segment < decoder_.segment; ++segment) {
    tape.Segment(segment, {}, /*recomputable=*/false, [](Tape&, const Var&) { return Var{}; });
  }
}

Var T5::Decoded(Tape& tape, const PairBatch& fed, const Var& encoded, bool train) const {
  Aids aids;
  Var x = tape.Segment(decoder_.segment, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
    return Embedded(t, decoder_, fed.decoder, train, aids);
  });
  int segment = decoder_.segment;
  const std::vector<Var> all =
      encoded.value ? std::vector<Var>{encoded.ReadUntil(HeadSegment() - 1)} : std::vector<Var>();
  for (size_t i = 0; i < decoder_.blocks.size(); ++i) {
    std::vector<Var> inputs = {x};
    inputs.insert(inputs.end(), all.begin(), all.end());
    x = tape.Segment(++segment, inputs, /*recomputable=*/true,
                     [this, i, train, fed, aids](Tape& t, std::span<const Var> in) {
                       const Var& encoded = in.size() > 1 ? in[1] : Var();
                       return RunBlock(t, in[0], encoded, fed, decoder_, i, aids, train);
                     });
  }
  return x;
}

Var T5::ForHead(Tape& tape, const Var& x, const PairBatch& fed, bool train) const {
  Var y = FinalNorm(tape, x, decoder_, fed.decoder.sample_keys, train);
  if (!config_.scale_decoder_outputs) return y;
  return Scaled(tape, y, static_cast<float>(StddevOf(config_.hidden_size)));
}

void T5::Loss(Tape& tape, const Batch& batch, float scale, View loss) const {
  const PairBatch fed(batch);
  const bool train = tape.recording();  // Also where a block's own tape does not record.
  const Var x = Decoded(tape, fed, Encoded(tape, fed, train), train);
  tape.Segment(HeadSegment(), x, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    const Var y = ForHead(t, in, fed, train);
    HeadLoss(t, y, *head_, fed.decoder.targets, fed.decoder.weights, scale, loss);
    return Var{};
  });
}

void T5::Logits(Tape& tape, const Batch& batch, int64_t column, View logits) const {
  const PairBatch fed(batch);
  KvCache* const cache = tape.cache();
  Var encoded;
  if (cache != nullptr && cache->has_encoded()) {
    PassEncoder(tape);
  } else {
    tape.Use(nullptr);  // It is of the decoder's attention.
    encoded = Encoded(tape, fed, false);
    tape.Use(cache);
  }
  const Var x = Decoded(tape, fed, encoded, false);
  tape.Segment(HeadSegment(), x, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    HeadLogits(t, ForHead(t, in, fed, false), *head_, fed.decoder, column, logits);
    return Var{};
  });
}

std::shared_ptr<Model> MakeT5(const T5Config& config) { return std::make_shared<T5>(config); }

}  // namespace fsdp
