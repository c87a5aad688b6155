// The shape of a Llama (Touvron et al. 2023, arXiv:2307.09288; Dubey et al. 2024, arXiv:2407.21783)
// and of its relatives: Mistral (arXiv:2310.06825, within its sliding window), Qwen2
// (arXiv:2407.10671: biases of q, k and v) and Qwen3 (arXiv:2505.09388: norms of q and k). Rotary
// positions, pre-norm blocks with RMSNorm, SwiGLU, grouped-query attention.
// Tests: tests/models/llama/family_test.cc
#ifndef FSDP_TRAIN_MODELS_LLAMA_CONFIG_H_
#define FSDP_TRAIN_MODELS_LLAMA_CONFIG_H_

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>

namespace fsdp {

class Model;
class ModelFamily;

// How rotary frequencies are stretched for longer contexts: models/llama/rope.h has the formulas.
struct RopeScaling {
  enum class Type { kDefault, kLinear, kDynamic, kLlama3, kYarn };

  Type type = Type::kDefault;
  // A type's own fields. Those it needs have no default; null stands for the default of the others.
  std::optional<double> factor = {};                             // All but kDefault. At least 1.
  std::optional<int64_t> original_max_position_embeddings = {};  // kLlama3, kYarn.
  std::optional<double> low_freq_factor = {};                    // kLlama3.
  std::optional<double> high_freq_factor = {};                   // kLlama3.
  std::optional<double> beta_fast = {};                          // kYarn: 32.
  std::optional<double> beta_slow = {};                          // kYarn: 1.
  std::optional<double> attention_factor = {};                   // kYarn: follows from the others.
  std::optional<double> mscale = {};                             // kYarn.
  std::optional<double> mscale_all_dim = {};                     // kYarn.
  std::optional<bool> truncate = {};                             // kYarn: true.

  bool operator==(const RopeScaling&) const = default;
};

constexpr auto NamesOf(RopeScaling::Type) {
  return std::to_array<std::string_view>({"default", "linear", "dynamic", "llama3", "yarn"});
}

// Calls visit(name, optional) for every field but the type.
template <typename Scaling, typename Visit>
requires std::same_as<std::remove_const_t<Scaling>, RopeScaling>
void VisitFields(Scaling& scaling, const Visit& visit) {
  visit("factor", scaling.factor);
  visit("original_max_position_embeddings", scaling.original_max_position_embeddings);
  visit("low_freq_factor", scaling.low_freq_factor);
  visit("high_freq_factor", scaling.high_freq_factor);
  visit("beta_fast", scaling.beta_fast);
  visit("beta_slow", scaling.beta_slow);
  visit("attention_factor", scaling.attention_factor);
  visit("mscale", scaling.mscale);
  visit("mscale_all_dim", scaling.mscale_all_dim);
  visit("truncate", scaling.truncate);
}

// Names as in recipes. The defaults are Llama 2's smallest model; those that follow another field
// do where they are not given.
struct LlamaConfig {
  int64_t hidden_size = 4096;
  int64_t intermediate_size = IntermediateSize(hidden_size);
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = num_attention_heads;
  int64_t head_dim = HeadDim(hidden_size, num_attention_heads);
  int64_t vocab_size = 32000;
  int64_t max_position_embeddings = 4096;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  bool tie_word_embeddings = false;
  bool attention_bias = false;         // Biases of q, k and v.
  bool attention_output_bias = false;  // Bias of o.
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm of each head of q and k, before rotation.
  double initializer_range = 0.02;
  // Tokens that attention reaches back, the query's own included; 0: all. A sequence is no longer,
  // so that it needs no mask.
  int64_t sliding_window = 0;

  // No part of the shape: how it is trained. Share of the attention's probabilities that are
  // dropped (Tape::recording()).
  double attention_dropout = 0;

  int64_t query_size() const { return num_attention_heads * head_dim; }
  int64_t key_value_size() const { return num_key_value_heads * head_dim; }
  // Tokens that a sequence may have. Only kDynamic stretches beyond max_position_embeddings.
  int64_t max_positions() const;
  bool operator==(const LlamaConfig&) const = default;

  // Two thirds of 4 x hidden, in whole 256s (arXiv:2302.13971, section 2.2).
  static constexpr int64_t IntermediateSize(int64_t hidden) {
    return (8 * hidden + 3 * 256 - 1) / (3 * 256) * 256;
  }
  static constexpr int64_t HeadDim(int64_t hidden, int64_t heads) {
    return heads > 0 ? hidden / heads : 0;
  }
};

const ModelFamily& FamilyOfConfig(const LlamaConfig& config);
std::shared_ptr<Model> MakeLlama(const LlamaConfig& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_LLAMA_CONFIG_H_
