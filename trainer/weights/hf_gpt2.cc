#include "trainer/weights/hf_gpt2.h"

#include <nlohmann/json.hpp>

namespace fsdp {
namespace {

struct Gpt2Key {
  const char* key;
  int64_t Gpt2Config::*field;
};
constexpr Gpt2Key kGpt2Integers[] = {{"n_embd", &Gpt2Config::hidden_size},
                                     {"n_layer", &Gpt2Config::num_hidden_layers},
                                     {"n_head", &Gpt2Config::num_attention_heads},
                                     {"vocab_size", &Gpt2Config::vocab_size},
                                     {"n_positions", &Gpt2Config::max_position_embeddings}};
struct Gpt2RealKey {
  const char* key;
  double Gpt2Config::*field;
};
constexpr Gpt2RealKey kGpt2Reals[] = {{"layer_norm_epsilon", &Gpt2Config::layer_norm_epsilon},
                                      {"initializer_range", &Gpt2Config::initializer_range},
                                      {"attn_pdrop", &Gpt2Config::attention_dropout},
                                      {"embd_pdrop", &Gpt2Config::embedding_dropout},
                                      {"resid_pdrop", &Gpt2Config::residual_dropout}};
const std::vector<HfFeature>& Gpt2Features() {
  static const std::vector<HfFeature> features = {
      {"activation_function", {"\"gelu_new\"", "\"gelu_pytorch_tanh\""}},
      {"scale_attn_weights", {"true"}},
      {"scale_attn_by_inverse_layer_idx", {"false"}},
      {"reorder_and_upcast_attn", {"false"}},
      {"tie_word_embeddings", {"true"}},
  };
  return features;
}

}  // namespace

Gpt2Config ReadHfGpt2(HfObject& hf) {
  Gpt2Config config;  // Its defaults are those of transformers, but for these.
  config.attention_dropout = config.embedding_dropout = config.residual_dropout = 0.1;
  for (const auto& [key, field] : kGpt2Integers) {
    if (const auto value = hf.Integer(key)) config.*field = *value;
  }
  for (const auto& [key, field] : kGpt2Reals) {
    if (const auto value = hf.Real(key)) config.*field = *value;
  }
  if (config.hidden_size < 1 || config.hidden_size > kMaxHiddenSize) {  // 4 times it must fit.
    hf.Refuse("n_embd", std::to_string(config.hidden_size) + " is not from 1 to " +
                            std::to_string(kMaxHiddenSize));
  }
  config.intermediate_size = hf.Integer("n_inner").value_or(4 * config.hidden_size);
  for (const HfFeature& f : Gpt2Features()) hf.WantOneOf(f.key, f.harmless);
  return config;
}

nlohmann::ordered_json WriteHfGpt2(const Gpt2Config& config) {
  nlohmann::ordered_json json = {{"architectures", {"GPT2LMHeadModel"}},
                                 {"model_type", "gpt2"},
                                 {"activation_function", "gelu_new"}};
  for (const auto& [key, field] : kGpt2Integers) json[key] = config.*field;
  for (const auto& [key, field] : kGpt2Reals) json[key] = config.*field;
  json["n_inner"] = config.intermediate_size;
  json["tie_word_embeddings"] = true;
  return json;
}

}  // namespace fsdp
