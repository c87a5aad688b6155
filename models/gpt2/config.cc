#include "models/gpt2/config.h"

#include <array>
#include <cmath>
#include <sstream>

#include "trainer/ops/layer_norm.h"

namespace fsdp {

int64_t NumParameters(const Gpt2Config& c) {
  const int64_t h = c.hidden_size, i = c.intermediate_size;
  const int64_t norm = 2 * h;
  const int64_t attention = (h * 3 * h + 3 * h) + (h * h + h);
  const int64_t mlp = (h * i + i) + (i * h + h);
  const int64_t block = norm + attention + norm + mlp;
  return (c.vocab_size + c.max_position_embeddings) * h + c.num_hidden_layers * block + norm;
}

void FillDependent(Gpt2Config& config, const std::function<bool(std::string_view)>& given) {
  if (given("hidden_size") && !given("intermediate_size")) {
    config.intermediate_size = 4 * config.hidden_size;
  }
}

std::vector<ShapeMistake> Validate(const Gpt2Config& c) {
  ShapeChecks checks;
  const bool hidden = checks.Integer("hidden_size", c.hidden_size, kMaxHiddenSize);
  checks.Integer("intermediate_size", c.intermediate_size, kMaxIntermediateSize);
  checks.Integer("num_hidden_layers", c.num_hidden_layers, kMaxHiddenLayers);
  const bool heads = checks.Integer("num_attention_heads", c.num_attention_heads, kMaxHiddenSize);
  checks.Integer("vocab_size", c.vocab_size, kMaxVocabSize);
  checks.Integer("max_position_embeddings", c.max_position_embeddings, kMaxPositions);
  checks.AtLeastZero("initializer_range", c.initializer_range);
  if (!(c.layer_norm_epsilon >= kMinLayerNormEps && std::isfinite(c.layer_norm_epsilon))) {
    std::ostringstream message;
    message << "want a number of at least " << kMinLayerNormEps << ", the smallest of fp32, got "
            << c.layer_norm_epsilon;
    checks.Add("layer_norm_epsilon", message.str());
  }
  VisitDropouts(c, [&](const char* field, double rate) { checks.Share(field, rate); });
  if (hidden && heads && c.hidden_size % c.num_attention_heads != 0) {
    checks.Add("num_attention_heads", std::to_string(c.num_attention_heads) +
                                          " heads do not divide hidden_size " +
                                          std::to_string(c.hidden_size));
  } else if (hidden && heads) {
    checks.HeadDim("num_attention_heads", c.head_dim());
  }
  return checks.Take();
}

std::span<const Gpt2Preset> Gpt2Presets() {
  const auto size = [](int64_t hidden, int64_t layers, int64_t heads) {
    return Gpt2Config{
        .hidden_size = hidden, .num_hidden_layers = layers, .num_attention_heads = heads};
  };
  static const std::array<Gpt2Preset, 4> presets = {{{"gpt2-124m", size(768, 12, 12)},
                                                     {"gpt2-350m", size(1024, 24, 16)},
                                                     {"gpt2-774m", size(1280, 36, 20)},
                                                     {"gpt2-1.5b", size(1600, 48, 25)}}};
  return presets;
}

const Gpt2Config* FindGpt2Preset(std::string_view name) {
  for (const Gpt2Preset& preset : Gpt2Presets()) {
    if (preset.name == name) return &preset.config;
  }
  return nullptr;
}

}  // namespace fsdp
