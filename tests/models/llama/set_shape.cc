#include "tests/models/llama/set_shape.h"

#include <string>

#include "models/llama/config.h"
#include "tests/testing/json.h"

namespace fsdp::testing {
namespace {

RopeScaling Scaling(const testing::Json& rope) {
  RopeScaling scaling;
  const std::string type = rope.at("rope_type");
  constexpr auto kNames = NamesOf(RopeScaling::Type{});
  size_t index = 0;
  while (kNames.at(index) != type) ++index;
  scaling.type = static_cast<RopeScaling::Type>(index);
  VisitFields(scaling, [&](const char* name, auto& field) {
    using T = typename std::remove_reference_t<decltype(field)>::value_type;
    if (rope.contains(name)) field = rope.at(name).get<T>();
  });
  return scaling;
}

}  // namespace

void SetLlamaShape(const testing::Json& c, TinyRun& run) {
  LlamaConfig config;
  config.hidden_size = c.at("hidden_size");
  config.intermediate_size = c.at("intermediate_size");
  config.num_hidden_layers = c.at("num_hidden_layers");
  config.num_attention_heads = c.at("num_attention_heads");
  config.num_key_value_heads = c.at("num_key_value_heads");
  config.head_dim = c.at("head_dim");
  config.vocab_size = c.at("vocab_size");
  config.max_position_embeddings = c.at("max_position_embeddings");
  config.rms_norm_eps = c.at("rms_norm_eps");
  config.rope_theta = c.at("rope_parameters").at("rope_theta");
  config.rope_scaling = Scaling(c.at("rope_parameters"));
  config.tie_word_embeddings = c.at("tie_word_embeddings");
  const std::string type = c.at("model_type");
  const bool bias = c.value("attention_bias", false);  // Qwen2's is no setting.
  config.attention_bias = bias || type == "qwen2";
  config.attention_output_bias = bias;
  config.mlp_bias = c.value("mlp_bias", false);
  config.qk_norm = type == "qwen3";
  run.llama = config;
}

}  // namespace fsdp::testing
