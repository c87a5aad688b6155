#include "trainer/weights/hf_llama.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

struct LlamaKey {
  const char* key;
  int64_t LlamaConfig::*field;
};
constexpr LlamaKey kLlamaIntegers[] = {
    {"hidden_size", &LlamaConfig::hidden_size},
    {"intermediate_size", &LlamaConfig::intermediate_size},
    {"num_hidden_layers", &LlamaConfig::num_hidden_layers},
    {"num_attention_heads", &LlamaConfig::num_attention_heads},
    {"vocab_size", &LlamaConfig::vocab_size},
    {"max_position_embeddings", &LlamaConfig::max_position_embeddings}};
struct LlamaRealKey {
  const char* key;
  double LlamaConfig::*field;
};
constexpr LlamaRealKey kLlamaReals[] = {{"rms_norm_eps", &LlamaConfig::rms_norm_eps},
                                        {"initializer_range", &LlamaConfig::initializer_range},
                                        {"attention_dropout", &LlamaConfig::attention_dropout}};

struct Relative {
  const char* model_type;
  const char* architecture;
  LlamaConfig defaults;  // Of keys that are absent. 0 in head_dim: follows from the others.
  // num_key_value_heads where the key is absent; where it is null they are the heads.
  std::optional<int64_t> key_value_heads;
  // attention_bias and mlp_bias are keys; otherwise the biases are those of `defaults`.
  bool attention_bias_key, mlp_bias_key;
};

const std::vector<Relative>& Relatives() {
  static const std::vector<Relative> relatives = [] {
    LlamaConfig llama{.hidden_size = 4096,
                      .intermediate_size = 11008,
                      .num_hidden_layers = 32,
                      .num_attention_heads = 32,
                      .num_key_value_heads = 32,
                      .head_dim = 0,
                      .vocab_size = 32000,
                      .max_position_embeddings = 2048,
                      .rms_norm_eps = 1e-6,
                      .rope_theta = 10000};
    LlamaConfig mistral = llama;
    mistral.intermediate_size = 14336;
    mistral.max_position_embeddings = 131072;
    LlamaConfig qwen2 = llama;
    qwen2.vocab_size = 151936;
    qwen2.intermediate_size = 22016;
    qwen2.max_position_embeddings = 32768;
    qwen2.attention_bias = true;
    LlamaConfig qwen3 = qwen2;
    qwen3.attention_bias = false;
    qwen3.qk_norm = true;
    qwen3.head_dim = 128;
    return std::vector<Relative>{
        {"llama", "LlamaForCausalLM", llama, std::nullopt, true, true},
        {"mistral", "MistralForCausalLM", mistral, 8, false, false},
        {"qwen2", "Qwen2ForCausalLM", qwen2, 32, false, false},
        {"qwen3", "Qwen3ForCausalLM", qwen3, 32, true, false},
    };
  }();
  return relatives;
}

const std::vector<HfFeature>& LlamaFeatures() {
  static const std::vector<HfFeature> features = {
      {"hidden_act", {"\"silu\"", "\"swish\""}},
      {"use_sliding_window", {"false"}},
      {"partial_rotary_factor", {"1", "1.0"}},
      {"rope_interleaved", {"false"}},
      {"pretraining_tp", {"0", "1"}},
  };
  return features;
}

// A window that no sequence fills is none.
void CheckWindow(const Relative& family, const LlamaConfig& config, HfObject& hf) {
  const bool has_switch = std::string_view(family.model_type).starts_with("qwen");
  std::optional<int64_t> window = hf.Integer("sliding_window");
  hf.Find("max_window_layers");
  const std::string mistral = "mistral";
  if (!window && family.model_type == mistral && !hf.Holds("sliding_window")) window = 4096;
  if (window && !has_switch && *window < config.max_position_embeddings) {
    hf.Refuse("sliding_window", std::to_string(*window) +
                                    " is not in this version, only null, or no fewer than "
                                    "max_position_embeddings");
  }
  const auto layers = hf.Find("layer_types");
  if (!layers) return;
  for (const JsonValue& layer : layers->Elements()) {
    if (!layer.Is("\"full_attention\"")) {
      layers->Refuse(layer.Show() + " is not in this version, only \"full_attention\"");
    }
  }
}

// rope_theta and rope_scaling, or both as rope_parameters, which newer files have.
void ReadRope(HfObject& hf, LlamaConfig& config) {
  if (const auto theta = hf.Real("rope_theta")) config.rope_theta = *theta;
  const char* key = hf.Holds("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const auto json = hf.Find(key);
  hf.Find("rope_scaling");
  if (!json) return;
  if (!json->IsObject()) json->Refuse(json->Show() + " is not an object");
  HfObject rope(*json);
  if (const auto theta = rope.Real("rope_theta")) config.rope_theta = *theta;
  rope.WantOneOf("partial_rotary_factor", {"1", "1.0"});
  const char* type_key = rope.Find("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(type_key).value_or("default");
  rope.Find("type");
  RopeScaling& scaling = config.rope_scaling;
  const auto names = NamesOf(RopeScaling::Type());
  const auto found = std::find(names.begin(), names.end(), type);
  if (found == names.end()) {
    rope.Refuse(type_key, rope.Find(type_key)->Show() + " is not in this version");
  }
  scaling.type = static_cast<RopeScaling::Type>(found - names.begin());
  VisitFields(scaling, [&](const char* name, auto& field) {
    using Field = std::decay_t<decltype(*field)>;
    if constexpr (std::is_same_v<Field, bool>) {
      field = rope.Boolean(name);
    } else if constexpr (std::is_same_v<Field, int64_t>) {
      field = rope.Integer(name);
    } else {
      field = rope.Real(name);
    }
  });
  // transformers' own defaults.
  const bool has_original =
      scaling.type == RopeScaling::Type::kLlama3 || scaling.type == RopeScaling::Type::kYarn;
  if (has_original && !scaling.original_max_position_embeddings) {
    scaling.original_max_position_embeddings = config.max_position_embeddings;
  }
  if (scaling.type == RopeScaling::Type::kDefault) scaling = RopeScaling();
  if (scaling.type == RopeScaling::Type::kDynamic) {
    scaling.original_max_position_embeddings.reset();  // It goes by max_position_embeddings.
  }
  if (const auto unknown = rope.Unasked(); !unknown.empty()) {
    rope.Refuse(unknown[0].first, "is not in this version");
  }
}

LlamaConfig ReadLlama(const Relative& family, HfObject& hf) {
  LlamaConfig config = family.defaults;
  for (const auto& [key, field] : kLlamaIntegers) {
    if (const auto value = hf.Integer(key)) config.*field = *value;
  }
  for (const auto& [key, field] : kLlamaReals) {
    if (const auto value = hf.Real(key)) config.*field = *value;
  }
  const bool absent = !hf.Holds("num_key_value_heads");
  config.num_key_value_heads =
      hf.Integer("num_key_value_heads")
          .value_or(absent ? family.key_value_heads.value_or(config.num_attention_heads)
                           : config.num_attention_heads);
  const int64_t quotient = LlamaConfig::HeadDim(config.hidden_size, config.num_attention_heads);
  const bool given = hf.Holds("head_dim") || config.head_dim == 0;
  config.head_dim = hf.Integer("head_dim").value_or(given ? quotient : config.head_dim);
  config.tie_word_embeddings = hf.Boolean("tie_word_embeddings").value_or(false);
  if (family.attention_bias_key) {
    config.attention_bias = hf.Boolean("attention_bias").value_or(false);
    config.attention_output_bias = config.attention_bias;
  } else {
    hf.WantOneOf("attention_bias", {config.attention_bias ? "true" : "false"});
  }
  if (family.mlp_bias_key) {
    config.mlp_bias = hf.Boolean("mlp_bias").value_or(false);
  } else {
    hf.WantOneOf("mlp_bias", {"false"});
  }
  ReadRope(hf, config);
  CheckWindow(family, config, hf);
  for (const HfFeature& f : LlamaFeatures()) hf.WantOneOf(f.key, f.harmless);
  return config;
}

// The relative that has what this one has.
const Relative& RelativeOf(const LlamaConfig& config) {
  const auto refuse = [](const std::string& what) {
    throw CheckpointError("no model of transformers has " + what + ": this one cannot be exported");
  };
  if (config.attention_output_bias && !config.attention_bias) {
    refuse("attention_output_bias without attention_bias");
  }
  const bool qwen2 = config.attention_bias && !config.attention_output_bias;
  if (config.qk_norm && qwen2) refuse("qk_norm and a bias of q, k and v alone");
  if (config.mlp_bias && (config.qk_norm || qwen2)) {
    refuse("mlp_bias with qk_norm or with a bias of q, k and v alone");
  }
  const std::string_view type = config.qk_norm ? "qwen3" : qwen2 ? "qwen2" : "llama";
  return *std::find_if(Relatives().begin(), Relatives().end(),
                       [&](const Relative& r) { return r.model_type == type; });
}

}  // namespace

std::optional<LlamaConfig> ReadHfLlama(std::string_view model_type, HfObject& hf) {
  const auto& relatives = Relatives();
  const auto found = std::find_if(relatives.begin(), relatives.end(),
                                  [&](const Relative& r) { return r.model_type == model_type; });
  if (found == relatives.end()) return std::nullopt;
  return ReadLlama(*found, hf);
}

nlohmann::ordered_json WriteHfLlama(const LlamaConfig& config) {
  const Relative& family = RelativeOf(config);
  nlohmann::ordered_json json = {{"architectures", {family.architecture}},
                                 {"model_type", family.model_type},
                                 {"hidden_act", "silu"}};
  for (const auto& [key, field] : kLlamaIntegers) json[key] = config.*field;
  for (const auto& [key, field] : kLlamaReals) json[key] = config.*field;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  if (family.attention_bias_key) json["attention_bias"] = config.attention_bias;
  if (family.mlp_bias_key) json["mlp_bias"] = config.mlp_bias;
  // The keys that older versions read; newer ones take them over.
  json["rope_theta"] = config.rope_theta;
  nlohmann::ordered_json scaling;  // null.
  if (config.rope_scaling.type != RopeScaling::Type::kDefault) {
    const std::string type(
        NamesOf(RopeScaling::Type())[static_cast<size_t>(config.rope_scaling.type)]);
    scaling = {{"rope_type", type}, {"type", type}};
    VisitFields(config.rope_scaling, [&](const char* name, const auto& field) {
      if (field) scaling[name] = *field;
    });
  }
  json["rope_scaling"] = scaling;
  return json;
}

std::string HfModelType(const LlamaConfig& config) { return RelativeOf(config).model_type; }

}  // namespace fsdp
