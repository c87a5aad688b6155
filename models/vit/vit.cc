#include "models/vit/vit.h"

#include <span>
#include <utility>

#include "trainer/autograd/tape.h"
#include "trainer/nn/class_losses.h"
#include "trainer/nn/image_layers.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/cast.h"

namespace fsdp {
namespace {

constexpr WeightLayout kLayout = WeightLayout::kOutIn;

// Dropouts of a layer. Site 0 is the embedding.
enum LayerSite : uint32_t { kAttention, kInner, kMlp, kLayerSites };

uint32_t SiteOf(size_t layer, LayerSite site) {
  return 1 + kLayerSites * static_cast<uint32_t>(layer) + site;
}

}  // namespace

Vit::Vit(const VitConfig& config) : config_(config) {
  const int64_t width = config.hidden_size, tokens = 1 + config.patches();
  const bool deep = config.mixes_heads();
  const Init normal{0, static_cast<float>(config.initializer_range)};
  const std::string embeddings = deep ? "" : "vit.embeddings.";
  first_ = New(embeddings + "cls_token", Shape{1, 1, width}, normal, /*decay=*/true);
  positions_ = New(embeddings + (deep ? "pos_embedding" : "position_embeddings"),
                   Shape{1, tokens, width}, normal, /*decay=*/true);
  const int64_t side = config.patch_size, channels = config.num_channels;
  projection_ = deep ? NewLinear("to_patch_embedding.1", Shape{width, config.patch_elements()})
                     : NewLinear(embeddings + "patch_embeddings.projection",
                                 Shape{width, channels, side, side});
  segments_.push_back(
      {"embeddings", false, {first_, positions_, projection_.weight, projection_.bias}});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) AddLayer(i);
  norm_ = NewNorm(deep ? "mlp_head.0" : "vit.layernorm", width);
  head_ = NewLinear(deep ? "mlp_head.1" : "classifier", Shape{config.num_labels, width});
  segments_.push_back({"head", false, {norm_.weight, norm_.bias, head_.weight, head_.bias}});
}

// Decay as with other families: matrices and embeddings, not biases and norms.
Parameter* Vit::New(const std::string& name, const Shape& shape, Init init, bool decay) {
  parameters_.push_back(std::make_unique<Parameter>(name, shape, init, decay));
  return parameters_.back().get();
}

Vit::Affine Vit::NewNorm(const std::string& name, int64_t width) {
  return {New(name + ".weight", Shape{width}, Init{1, 0}, /*decay=*/false),
          New(name + ".bias", Shape{width}, Init{}, /*decay=*/false)};
}

Vit::Affine Vit::NewLinear(const std::string& name, const Shape& weight) {
  const Init normal{0, static_cast<float>(config_.initializer_range)};
  return {New(name + ".weight", weight, normal, /*decay=*/true),
          New(name + ".bias", Shape{weight[0]}, Init{}, /*decay=*/false)};
}

Vit::Affine Vit::NewQkv(const std::string& prefix) {
  const int64_t width = config_.hidden_size, inner = config_.inner_size();
  const Init normal{0, static_cast<float>(config_.initializer_range)};
  if (config_.mixes_heads()) {
    return {New(prefix + "to_qkv.weight", Shape{3 * inner, width}, normal, /*decay=*/true),
            nullptr};
  }
  std::vector<ParameterSlice> weights, biases;
  for (const char* name : {"query", "key", "value"}) {
    weights.push_back({prefix + name + ".weight", inner, normal, /*decay=*/true});
    biases.push_back({prefix + name + ".bias", inner, Init{}, /*decay=*/false});
  }
  const auto add = [&](const char* name, const Shape& shape, std::vector<ParameterSlice> slices) {
    parameters_.push_back(std::make_unique<Parameter>(prefix + name, shape, std::move(slices)));
    return parameters_.back().get();
  };
  Affine qkv{add("qkv.weight", Shape{3 * inner, width}, std::move(weights)), nullptr};
  if (config_.qkv_bias) qkv.bias = add("qkv.bias", Shape{3 * inner}, std::move(biases));
  return qkv;
}

Vit::Layer Vit::NewLayer(int64_t index) {
  const int64_t width = config_.hidden_size, inner = config_.inner_size();
  const int64_t wide = config_.intermediate_size, heads = config_.num_attention_heads;
  const bool deep = config_.mixes_heads();
  const std::string prefix =
      (deep ? "transformer.layers." : "vit.encoder.layer.") + std::to_string(index) + ".";
  const std::string attention = prefix + "0.fn.", mlp = prefix + "1.fn.";  // Those of a DeepViT.
  Layer layer{};
  layer.attention_norm = NewNorm(deep ? attention + "norm" : prefix + "layernorm_before", width);
  layer.qkv = NewQkv(deep ? attention + "fn." : prefix + "attention.attention.");
  if (deep) {
    layer.mix =
        New(attention + "fn.reattn_weights", Shape{heads, heads}, Init{0, 1}, /*decay=*/true);
    layer.mix_norm = NewNorm(attention + "fn.reattn_norm.1", heads);
  }
  layer.out = NewLinear(deep ? attention + "fn.to_out.0" : prefix + "attention.output.dense",
                        Shape{width, inner});
  layer.mlp_norm = NewNorm(deep ? mlp + "norm" : prefix + "layernorm_after", width);
  layer.up = NewLinear(deep ? mlp + "fn.net.0" : prefix + "intermediate.dense", Shape{wide, width});
  layer.down = NewLinear(deep ? mlp + "fn.net.3" : prefix + "output.dense", Shape{width, wide});
  return layer;
}

void Vit::AddLayer(int64_t index) {
  layers_.push_back(NewLayer(index));
  const Layer& l = layers_.back();
  std::vector<Parameter*> attention = {l.attention_norm.weight, l.attention_norm.bias,
                                       l.qkv.weight};
  if (l.qkv.bias != nullptr) attention.push_back(l.qkv.bias);
  if (l.mix != nullptr) {
    attention.insert(attention.end(), {l.mix, l.mix_norm.weight, l.mix_norm.bias});
  }
  attention.insert(attention.end(), {l.out.weight, l.out.bias});
  const std::vector<Parameter*> mlp = {l.mlp_norm.weight, l.mlp_norm.bias, l.up.weight,
                                       l.up.bias,         l.down.weight,   l.down.bias};
  const std::string name = "layer." + std::to_string(index);
  if (config_.branches_are_blocks) {
    segments_.push_back({name + ".attention", /*is_block=*/true, std::move(attention)});
    segments_.push_back({name + ".mlp", /*is_block=*/true, mlp});
  } else {
    attention.insert(attention.end(), mlp.begin(), mlp.end());
    segments_.push_back({name, /*is_block=*/true, std::move(attention)});
  }
}

BatchSpec Vit::Inputs(int64_t) const {
  using Role = BatchInput::Role;
  const int64_t side = config_.image_size;
  return {{{"pixels", DType::kFloat32, Shape{side, side, config_.num_channels}},
           {"label", DType::kInt32, Shape{}, Role::kTarget, config_.num_labels},
           {"weight", DType::kFloat32, Shape{}, Role::kWeight}}};
}

Var Vit::Norm(Tape& tape, const Var& x, const Affine& norm) const {
  return LayerNorm(tape, x, *norm.weight, *norm.bias,
                   static_cast<float>(config_.layer_norm_epsilon));
}

Var Vit::Attention(Tape& tape, const Var& x, const View& keys, size_t layer, bool train) const {
  const Layer& l = layers_[layer];
  const int64_t rows = keys.shape[0], heads = config_.num_attention_heads;
  Attending attending{.sample_keys = keys};
  if (l.mix != nullptr) {
    attending.mixed = {l.mix, l.mix_norm.weight, l.mix_norm.bias,
                       static_cast<float>(config_.layer_norm_epsilon)};
  }
  Var a = Norm(tape, x, l.attention_norm);
  a = Linear(tape, a, *l.qkv.weight, kLayout, l.qkv.bias);
  a = SelfAttention(tape, a, rows, {heads, heads}, attending,
                    {train ? config_.attention_dropout : 0, layer});
  const double rate = train ? config_.hidden_dropout_prob : 0;
  if (rate == 0) return LinearResidual(tape, a, *l.out.weight, kLayout, l.out.bias, x);
  a = Linear(tape, a, *l.out.weight, kLayout, l.out.bias);
  return Residual(tape, x, Dropout(tape, a, keys, SiteOf(layer, kAttention), rate));
}

Var Vit::Mlp(Tape& tape, const Var& x, const View& keys, size_t layer, bool train) const {
  const Layer& l = layers_[layer];
  const double rate = train ? config_.hidden_dropout_prob : 0;
  Var m = Norm(tape, x, l.mlp_norm);
  m = GeluExact(tape, Linear(tape, m, *l.up.weight, kLayout, l.up.bias));
  if (rate == 0) return LinearResidual(tape, m, *l.down.weight, kLayout, l.down.bias, x);
  if (config_.mixes_heads()) {  // vit-pytorch drops there, too. A copy is dropped: m is cheap.
    m = Dropout(tape, Scaled(tape, m, 1), keys, SiteOf(layer, kInner), rate);
  }
  m = Linear(tape, m, *l.down.weight, kLayout, l.down.bias);
  return Residual(tape, x, Dropout(tape, m, keys, SiteOf(layer, kMlp), rate));
}

Var Vit::Hidden(Tape& tape, const Batch& batch) const {
  const bool train = tape.recording();  // Also where a block's own tape does not record.
  const View pixels = batch.inputs[0], keys = batch.sample_keys;
  Var x = tape.Segment(0, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
    const PatchOrder order =
        config_.mixes_heads() ? PatchOrder::kChannelLast : PatchOrder::kChannelFirst;
    Var y = Patches(t, pixels, config_.patch_size, order);
    y = Linear(t, y, *projection_.weight, kLayout, projection_.bias);
    y = JoinTokens(t, y, *first_, *positions_, batch.rows());
    const double rate = config_.hidden_dropout_prob;
    return train && rate > 0 ? Dropout(t, y, keys, /*site=*/0, rate) : y;
  });
  int segment = 0;
  const auto run = [&](const Tape::Body& body) {
    x = tape.Segment(++segment, {x}, /*recomputable=*/true, body);
  };
  using Inputs = std::span<const Var>;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (config_.branches_are_blocks) {
      run([=, this](Tape& t, Inputs in) { return Attention(t, in[0], keys, i, train); });
      run([=, this](Tape& t, Inputs in) { return Mlp(t, in[0], keys, i, train); });
    } else {
      run([=, this](Tape& t, Inputs in) {
        return Mlp(t, Attention(t, in[0], keys, i, train), keys, i, train);
      });
    }
  }
  return x;
}

// The norm is of each token by itself: only the first one's is looked at.
Var Vit::Scores(Tape& tape, const Var& hidden, int64_t rows) const {
  const Var first = Norm(tape, FirstTokens(tape, hidden, rows), norm_);
  return Linear(tape, first, *head_.weight, kLayout, head_.bias);
}

void Vit::Loss(Tape& tape, const Batch& batch, float scale, View loss) const {
  const View label = batch.inputs[1], weight = batch.inputs[2];
  const Var hidden = Hidden(tape, batch);
  tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    ClassLoss(t, Scores(t, in, batch.rows()), label, weight, scale, loss);
    return Var{};
  });
}

void Vit::Predict(Tape& tape, const Batch& batch, View scores) const {
  const Var hidden = Hidden(tape, batch);
  tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    Cast(t.stream(), Scores(t, in, batch.rows()).view(), scores);
    return Var{};
  });
}

std::shared_ptr<Model> MakeVit(const VitConfig& config) { return std::make_shared<Vit>(config); }

}  // namespace fsdp
