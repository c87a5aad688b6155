// The shape of a GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask
// Learners"): learned positions, pre-norm blocks, GELU (tanh), the head tied to the embedding.
#ifndef FSDP_TRAIN_MODELS_GPT2_CONFIG_H_
#define FSDP_TRAIN_MODELS_GPT2_CONFIG_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Names as in recipes. The defaults are the smallest published model.
struct Gpt2Config {
  int64_t hidden_size = 768;
  int64_t intermediate_size = 4 * hidden_size;  // Follows hidden_size where it is not given.
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t vocab_size = 50257;
  int64_t max_position_embeddings = 1024;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;  // Standard deviation of the initial weights.

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  bool operator==(const Gpt2Config&) const = default;
};

// No field's upper bound below lets this overflow.
int64_t NumParameters(const Gpt2Config& config);

// Upper bounds of the fields: far above any machine, and products of them fit in 64 bits.
inline constexpr int64_t kMaxHiddenSize = int64_t{1} << 20;
inline constexpr int64_t kMaxIntermediateSize = int64_t{1} << 22;
inline constexpr int64_t kMaxHiddenLayers = int64_t{1} << 16;
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 24;
inline constexpr int64_t kMaxPositions = int64_t{1} << 24;

struct ShapeMistake {
  std::string field;  // A member of Gpt2Config.
  std::string message;
};

// Empty where a model of this shape can be built.
std::vector<ShapeMistake> Validate(const Gpt2Config& config);

struct Gpt2Preset {
  std::string_view name;
  Gpt2Config config;
};

// The four published sizes, small to large, under the names usual today. Parameters count the tied
// embedding once, as the published checkpoints hold it.
std::span<const Gpt2Preset> Gpt2Presets();
const Gpt2Config* FindGpt2Preset(std::string_view name);  // Null where there is none.

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_GPT2_CONFIG_H_
