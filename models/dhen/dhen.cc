#include "models/dhen/dhen.h"

#include <cmath>
#include <span>
#include <utility>

#include "trainer/autograd/tape.h"
#include "trainer/data/clicks/click_store.h"
#include "trainer/nn/class_losses.h"
#include "trainer/nn/layers.h"
#include "trainer/nn/vector_layers.h"
#include "trainer/ops/cast.h"

namespace fsdp {
namespace {

constexpr WeightLayout kLayout = WeightLayout::kOutIn;
constexpr int64_t kTaps = 3;  // Taps of the convolution along the vectors.

}  // namespace

Dhen::Dhen(const DhenConfig& config) : config_(config) {
  const int64_t width = config.table_width, wide = config.intermediate_size;
  dense_up_ = NewLinear("dense.up", wide, config.dense_columns);
  dense_down_ = NewLinear("dense.down", config.dense_vectors * width, wide);
  segments_.push_back(
      {"dense", false, {dense_up_.weight, dense_up_.bias, dense_down_.weight, dense_down_.bias}});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) AddLayer(i);
  head_up_ = NewLinear("head.up", wide, config.num_vectors * width);
  head_down_ = NewLinear("head.down", 1, wide);
  segments_.push_back(
      {"head", false, {head_up_.weight, head_up_.bias, head_down_.weight, head_down_.bias}});
}

// Decay as with other families: matrices, not biases and norms.
Parameter* Dhen::New(const std::string& name, const Shape& shape, Init init, bool decay) {
  parameters_.push_back(std::make_unique<Parameter>(name, shape, init, decay));
  return parameters_.back().get();
}

Parameter* Dhen::NewWeight(const std::string& name, const Shape& shape) {
  const int64_t inputs = shape.NumElements() / shape[0];
  return New(name, shape, Init{0, 1 / std::sqrt(3 * static_cast<float>(inputs))}, /*decay=*/true);
}

Dhen::Affine Dhen::NewLinear(const std::string& name, int64_t out, int64_t in, bool bias) {
  Affine linear{NewWeight(name + ".weight", Shape{out, in}), nullptr};
  if (bias) linear.bias = New(name + ".bias", Shape{out}, Init{}, /*decay=*/false);
  return linear;
}

void Dhen::AddLayer(int64_t index) {
  const int64_t width = config_.table_width, in = config_.vectors(index);
  const int64_t out = config_.num_vectors, rank = config_.cross_rank;
  const std::string name = "layers." + std::to_string(index);
  const auto mix = [&](const char* module) {
    return NewWeight(name + "." + module + ".mix.weight", Shape{out, in});
  };
  Layer l{};
  l.linear = NewLinear(name + ".linear", out, in);
  l.qkv = NewLinear(name + ".attention.qkv", 3 * width, width);
  l.out = NewLinear(name + ".attention.out", width, width);
  l.attention_mix = mix("attention");
  l.convolution = NewWeight(name + ".convolution.weight", Shape{width, width, kTaps, 1});
  l.convolution_mix = mix("convolution");
  l.cross_down = NewLinear(name + ".cross.down", rank, in * width, /*bias=*/false);
  l.cross_up = NewLinear(name + ".cross.up", in * width, rank);
  l.cross_mix = mix("cross");
  l.dot = NewWeight(name + ".dot.weight", Shape{out * width, in * (in - 1) / 2});
  if (in != out) l.shortcut = NewWeight(name + ".shortcut.weight", Shape{out, in});
  l.norm = {New(name + ".norm.weight", Shape{width}, Init{1, 0}, /*decay=*/false),
            New(name + ".norm.bias", Shape{width}, Init{}, /*decay=*/false)};
  std::vector<Parameter*> all = {l.linear.weight,   l.linear.bias,
                                 l.qkv.weight,      l.qkv.bias,
                                 l.out.weight,      l.out.bias,
                                 l.attention_mix,   l.convolution,
                                 l.convolution_mix, l.cross_down.weight,
                                 l.cross_up.weight, l.cross_up.bias,
                                 l.cross_mix,       l.dot};
  if (l.shortcut != nullptr) all.push_back(l.shortcut);
  all.insert(all.end(), {l.norm.weight, l.norm.bias});
  layers_.push_back(l);
  segments_.push_back({name, /*is_block=*/true, std::move(all)});
}

BatchSpec Dhen::Inputs(int64_t) const {
  int64_t slots = 0;
  for (int64_t t = 0; t < config_.tables(); ++t) slots += config_.bag(t);
  return ClickInputs(config_.dense_columns, slots);
}

std::vector<EmbeddingTable> Dhen::tables() const {
  std::vector<EmbeddingTable> tables;
  const auto stddev = 1 / std::sqrt(static_cast<float>(config_.table_width));
  for (int64_t t = 0; t < config_.tables(); ++t) {
    tables.push_back(
        {.name = "tables." + std::to_string(t) + ".weight",
         .rows = config_.table_rows[static_cast<size_t>(t)],
         .width = config_.table_width,
         .bag = config_.bag(t),
         .init = Init{0, stddev},
         .dtype = config_.table_dtype == TableDType::kFloat32 ? DType::kFloat32 : DType::kBFloat16,
         .capacity = config_.table_capacity});
  }
  return tables;
}

// Modules that end in a product over the vectors add to one sum, [rows * table_width, vectors],
// which is turned around at the end.
Var Dhen::Inside(Tape& t, const Var& x, size_t layer, int64_t rows) const {
  const Layer& l = layers_[layer];
  const int64_t heads = config_.num_attention_heads;
  const auto mixed = [&](const Var& of, const Parameter* weight, const Var& sum) {
    return LinearResidual(t, SwapVectors(t, of, rows), *weight, kLayout, nullptr, sum);
  };
  const Var turned = SwapVectors(t, x, rows);
  Var sum = Linear(t, turned, *l.linear.weight, kLayout, l.linear.bias);

  Var a = Linear(t, x, *l.qkv.weight, kLayout, l.qkv.bias);
  a = SelfAttention(t, a, rows, {heads, heads}, Attending{});
  sum = mixed(Linear(t, a, *l.out.weight, kLayout, l.out.bias), l.attention_mix, sum);

  sum = mixed(Relu(t, ConvolveVectors(t, x, *l.convolution, rows)), l.convolution_mix, sum);

  Var c = Linear(t, x, *l.cross_down.weight, kLayout, nullptr);
  c = Linear(t, c, *l.cross_up.weight, kLayout, l.cross_up.bias);
  sum = mixed(Multiply(t, x, c), l.cross_mix, sum);

  sum = l.shortcut == nullptr ? Residual(t, sum, turned)
                              : LinearResidual(t, turned, *l.shortcut, kLayout, nullptr, sum);
  Var y = SwapVectors(t, sum, rows);
  y = LinearResidual(t, PairDots(t, x, rows), *l.dot, kLayout, nullptr, y);
  y = LayerNorm(t, y, *l.norm.weight, *l.norm.bias, static_cast<float>(config_.layer_norm_epsilon));
  return Scaled(t, y, 1);  // A norm is cheap to make again, but not where another block reads it.
}

Var Dhen::Hidden(Tape& tape, const Batch& batch) const {
  const int64_t rows = batch.rows();
  Var x = tape.Segment(0, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
    Var dense = FromBatch(t, batch.inputs[kDense]);
    dense = Relu(t, Linear(t, dense, *dense_up_.weight, kLayout, dense_up_.bias));
    dense = Linear(t, dense, *dense_down_.weight, kLayout, dense_down_.bias);
    return JoinVectors(t, Pooled(t, batch), dense, rows, config_.table_width);
  });
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = tape.Segment(static_cast<int>(1 + i), x, /*recomputable=*/true,
                     [=, this](Tape& t, const Var& in) { return Inside(t, in, i, rows); });
  }
  return x;
}

Var Dhen::Logit(Tape& tape, const Var& hidden) const {
  Var y = Relu(tape, Linear(tape, hidden, *head_up_.weight, kLayout, head_up_.bias));
  return Linear(tape, y, *head_down_.weight, kLayout, head_down_.bias);
}

void Dhen::Loss(Tape& tape, const Batch& batch, float scale, View loss) const {
  const View label = batch.inputs[kClick], weight = batch.inputs[kClickWeight];
  const Var hidden = Hidden(tape, batch);
  tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    BinaryLoss(t, Logit(t, in), label, weight, scale, loss);
    return Var{};
  });
}

void Dhen::Predict(Tape& tape, const Batch& batch, View scores) const {
  const Var hidden = Hidden(tape, batch);
  tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    Cast(t.stream(), Logit(t, in).view(), scores);
    return Var{};
  });
}

std::shared_ptr<Model> MakeDhen(const DhenConfig& config) { return std::make_shared<Dhen>(config); }

}  // namespace fsdp
