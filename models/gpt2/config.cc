#include "models/gpt2/config.h"

#include <array>
#include <cmath>

namespace fsdp {

int64_t NumParameters(const Gpt2Config& c) {
  const int64_t h = c.hidden_size, i = c.intermediate_size;
  const int64_t norm = 2 * h;
  const int64_t attention = (h * 3 * h + 3 * h) + (h * h + h);
  const int64_t mlp = (h * i + i) + (i * h + h);
  const int64_t block = norm + attention + norm + mlp;
  return (c.vocab_size + c.max_position_embeddings) * h + c.num_hidden_layers * block + norm;
}

std::vector<ShapeMistake> Validate(const Gpt2Config& c) {
  std::vector<ShapeMistake> mistakes;
  const auto check = [&](const char* field, int64_t value, int64_t max) {
    if (value >= 1 && value <= max) return true;
    mistakes.push_back({field, "want an integer from 1 to " + std::to_string(max) + ", got " +
                                   std::to_string(value)});
    return false;
  };
  const bool hidden = check("hidden_size", c.hidden_size, kMaxHiddenSize);
  check("intermediate_size", c.intermediate_size, kMaxIntermediateSize);
  check("num_hidden_layers", c.num_hidden_layers, kMaxHiddenLayers);
  const bool heads = check("num_attention_heads", c.num_attention_heads, kMaxHiddenSize);
  check("vocab_size", c.vocab_size, kMaxVocabSize);
  check("max_position_embeddings", c.max_position_embeddings, kMaxPositions);
  if (!std::isfinite(c.initializer_range) || c.initializer_range < 0) {
    mistakes.push_back({"initializer_range",
                        "want a number of at least 0, got " + std::to_string(c.initializer_range)});
  }
  if (!std::isfinite(c.layer_norm_epsilon) || c.layer_norm_epsilon < 0) {
    mistakes.push_back({"layer_norm_epsilon", "want a number of at least 0, got " +
                                                  std::to_string(c.layer_norm_epsilon)});
  }
  if (hidden && heads && c.hidden_size % c.num_attention_heads != 0) {
    mistakes.push_back({"num_attention_heads", std::to_string(c.num_attention_heads) +
                                                   " heads do not divide hidden_size " +
                                                   std::to_string(c.hidden_size)});
  }
  return mistakes;
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
