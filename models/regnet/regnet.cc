#include "models/regnet/regnet.h"

#include <cmath>

#include "trainer/autograd/tape.h"
#include "trainer/nn/class_losses.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/cast.h"

namespace fsdp {

RegNet::RegNet(const RegNetConfig& config) : config_(config) {
  stem_ = NewConvolution("regnet.embedder.embedder", config.num_channels, config.embedding_size, 3,
                         {.stride = 2, .padding_height = 1, .padding_width = 1});
  AddSegment("embedder", /*is_block=*/false);
  for (size_t stage = 0; stage < config.hidden_sizes.size(); ++stage) {
    for (int64_t i = 0; i < config.depths[stage]; ++i) AddBlock(stage, i);
  }
  const int64_t last = config.hidden_sizes.back();
  head_ = NewLinear("classifier.1", Shape{config.num_labels, last},
                    1 / (3 * static_cast<double>(last)));  // That of torch.nn.Linear.
  AddSegment("head", /*is_block=*/false);
}

// Decay as with other families: kernels and matrices, not biases and norms.
Parameter* RegNet::New(const std::string& name, const Shape& shape, Init init, bool decay) {
  parameters_.push_back(std::make_unique<Parameter>(name, shape, init, decay));
  return parameters_.back().get();
}

ModelBuffer* RegNet::NewBuffer(const std::string& name, const Shape& shape, DType dtype,
                               double initial) {
  buffers_.push_back(std::make_unique<ModelBuffer>(name, shape, dtype, initial));
  return buffers_.back().get();
}

// He et al. 2015 (arXiv:1502.01852) by what leaves a kernel, as transformers and torchvision.
RegNet::ConvolutionNorm RegNet::NewConvolution(const std::string& name, int64_t in, int64_t out,
                                               int64_t kernel, const ConvolutionWindow& window) {
  const auto fan_out = static_cast<double>(out * kernel * kernel);
  const Init normal{0, static_cast<float>(std::sqrt(2 / fan_out))};
  const std::string norm = name + ".normalization.";
  const Shape channels{out};
  return {New(name + ".convolution.weight", Shape{out, in / window.groups, kernel, kernel}, normal,
              /*decay=*/true),
          window,
          {.weight = New(norm + "weight", channels, Init{1, 0}, /*decay=*/false),
           .bias = New(norm + "bias", channels, Init{}, /*decay=*/false),
           .mean = NewBuffer(norm + "running_mean", channels, DType::kFloat32, 0),
           .variance = NewBuffer(norm + "running_var", channels, DType::kFloat32, 1),
           .count = NewBuffer(norm + "num_batches_tracked", Shape{}, DType::kInt64, 0),
           .eps = RegNetConfig::kEpsilon,
           .momentum = RegNetConfig::kMomentum}};
}

RegNet::Affine RegNet::NewLinear(const std::string& name, const Shape& weight, double variance) {
  const Init normal{0, static_cast<float>(std::sqrt(variance))};
  return {New(name + ".weight", weight, normal, /*decay=*/true),
          New(name + ".bias", Shape{weight[0]}, Init{}, /*decay=*/false)};
}

void RegNet::AddBlock(size_t stage, int64_t index) {
  const int64_t out = config_.hidden_sizes[stage];
  const int64_t in = index == 0 ? config_.InputOf(stage) : out;
  const int64_t stride = index == 0 && config_.Halves(stage) ? 2 : 1;
  const std::string name = "stages." + std::to_string(stage) + ".layers." + std::to_string(index);
  const std::string prefix = "regnet.encoder." + name + ".";
  const auto layer = [&](int i) { return prefix + "layer." + std::to_string(i); };
  Block block{};
  if (in != out || stride != 1) {
    block.shortcut = NewConvolution(prefix + "shortcut", in, out, 1, {.stride = stride});
  }
  block.narrow = NewConvolution(layer(0), in, out, 1, {});
  block.grouped = NewConvolution(
      layer(1), out, out, 3,
      {.stride = stride, .padding_height = 1, .padding_width = 1, .groups = config_.Groups(stage)});
  if (config_.squeeze_excitation) {
    const int64_t few = RegNetConfig::Squeezed(in);
    block.squeeze =
        NewLinear(layer(2) + ".attention.0", Shape{few, out, 1, 1}, 2 / static_cast<double>(few));
    block.excite =
        NewLinear(layer(2) + ".attention.2", Shape{out, few, 1, 1}, 2 / static_cast<double>(out));
  }
  block.wide = NewConvolution(layer(config_.squeeze_excitation ? 3 : 2), out, out, 1, {});
  blocks_.push_back(block);
  AddSegment(name, /*is_block=*/true);
}

void RegNet::AddSegment(const std::string& name, bool is_block) {
  ModelSegment segment{name, is_block, {}};
  for (; listed_parameters_ < parameters_.size(); ++listed_parameters_) {
    segment.parameters.push_back(parameters_[listed_parameters_].get());
  }
  for (; listed_buffers_ < buffers_.size(); ++listed_buffers_) {
    segment.buffers.push_back(buffers_[listed_buffers_].get());
    if (segment.buffers.back()->dtype() == DType::kInt64) ++segment.batch_norms;  // One's count.
  }
  segments_.push_back(std::move(segment));
}

BatchSpec RegNet::Inputs(int64_t) const {
  using Role = BatchInput::Role;
  const int64_t side = config_.image_size;
  return {{{"pixels", DType::kFloat32, Shape{side, side, config_.num_channels}},
           {"label", DType::kInt32, Shape{}, Role::kTarget, config_.num_labels},
           {"weight", DType::kFloat32, Shape{}, Role::kWeight}}};
}

Var RegNet::Convolve(Tape& tape, const Var& x, const ConvolutionNorm& layer, const View& weights,
                     bool relu, bool returned) {
  return BatchNorm(tape, Convolution(tape, x, *layer.weight, layer.window), layer.norm, weights,
                   relu, returned);
}

Var RegNet::RunBlock(Tape& tape, const Var& x, const Block& block, const View& weights) {
  constexpr WeightLayout kLayout = WeightLayout::kOutIn;
  Var y = Convolve(tape, x, block.narrow, weights, /*relu=*/true);
  y = Convolve(tape, y, block.grouped, weights, /*relu=*/true);
  if (block.squeeze) {
    const Affine &down = *block.squeeze, &up = *block.excite;
    Var f = Relu(tape, Linear(tape, MeanPixels(tape, y), *down.weight, kLayout, down.bias));
    f = Sigmoid(tape, Linear(tape, f, *up.weight, kLayout, up.bias));
    y = ScaleChannels(tape, y, f);
  }
  y = Convolve(tape, y, block.wide, weights, /*relu=*/false);
  const Var beside =
      block.shortcut ? Convolve(tape, x, *block.shortcut, weights, /*relu=*/false) : x;
  return Relu(tape, Residual(tape, y, beside));
}

Var RegNet::Hidden(Tape& tape, const Batch& batch) const {
  const View pixels = batch.inputs[0], weights = batch.inputs[2];
  Var x = tape.Segment(0, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
    return Convolve(t, Pixels(t, pixels), stem_, weights, /*relu=*/true, /*returned=*/true);
  });
  int segment = 0;
  for (const Block& block : blocks_) {
    x = tape.Segment(++segment, x, /*recomputable=*/true, [=, &block](Tape& t, const Var& in) {
      return RunBlock(t, in, block, weights);
    });
  }
  return x;
}

Var RegNet::Scores(Tape& tape, const Var& hidden) const {
  return Linear(tape, MeanPixels(tape, hidden), *head_.weight, WeightLayout::kOutIn, head_.bias);
}

void RegNet::Loss(Tape& tape, const Batch& batch, float scale, View loss) const {
  const View label = batch.inputs[1], weight = batch.inputs[2];
  const Var hidden = Hidden(tape, batch);
  tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    ClassLoss(t, Scores(t, in), label, weight, scale, loss);
    return Var{};
  });
}

void RegNet::Predict(Tape& tape, const Batch& batch, View scores) const {
  const Var hidden = Hidden(tape, batch);
  tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
    Cast(t.stream(), Scores(t, in).view(), scores);
    return Var{};
  });
}

std::shared_ptr<Model> MakeRegNet(const RegNetConfig& config) {
  return std::make_shared<RegNet>(config);
}

}  // namespace fsdp
