// The shape of a GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask
// Learners"): learned positions, pre-norm blocks, GELU (tanh), the head tied to the embedding.
#ifndef FSDP_TRAIN_MODELS_GPT2_CONFIG_H_
#define FSDP_TRAIN_MODELS_GPT2_CONFIG_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "models/shape_checks.h"

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

  // No part of the shape: how it is trained. Shares of the elements of the embeddings' sum, of what
  // a block adds to the residual stream, and of the attention's probabilities, that are dropped
  // (Tape::recording()).
  double embedding_dropout = 0, residual_dropout = 0, attention_dropout = 0;

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  int64_t max_positions() const { return max_position_embeddings; }
  bool operator==(const Gpt2Config&) const = default;
};

// Calls visit(name, field) for each field of the shape, under the names of recipes.
template <typename Config, typename Visit>
requires std::same_as<std::remove_const_t<Config>, Gpt2Config>
void VisitFields(Config& config, const Visit& visit) {
  visit("hidden_size", config.hidden_size);
  visit("intermediate_size", config.intermediate_size);
  visit("num_hidden_layers", config.num_hidden_layers);
  visit("num_attention_heads", config.num_attention_heads);
  visit("vocab_size", config.vocab_size);
  visit("max_position_embeddings", config.max_position_embeddings);
  visit("layer_norm_epsilon", config.layer_norm_epsilon);
  visit("initializer_range", config.initializer_range);
}

// The same for the dropouts.
template <typename Config, typename Visit>
requires std::same_as<std::remove_const_t<Config>, Gpt2Config>
void VisitDropouts(Config& config, const Visit& visit) {
  visit("embedding_dropout", config.embedding_dropout);
  visit("residual_dropout", config.residual_dropout);
  visit("attention_dropout", config.attention_dropout);
}

// Fields that nobody has given follow those that somebody has.
void FillDependent(Gpt2Config& config, const std::function<bool(std::string_view)>& given);

// No field's upper bound lets this overflow.
int64_t NumParameters(const Gpt2Config& config);

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
