#include "models/llama/hf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

// Otherwise the biases are those of the relative's standard, or another key's.
bool AttentionBiasIsAKey(std::string_view type) {
  return type != "mistral" && type != "qwen2" && type != "mixtral" && type != "qwen2_moe";
}
bool MlpBiasIsAKey(std::string_view type) { return type == "llama"; }
bool HasWindow(std::string_view type) { return type == "mistral"; }

// Whether a window in config.json limits no layer: Qwen has a switch, which must be off, and dots1
// gives the window to layers from max_window_layers on, unless layer_types says which have it.
bool WindowIsOff(std::string_view type, HfObject& hf, const LlamaConfig& config) {
  if (type != "dots1") return type.starts_with("qwen");
  const int64_t full = hf.Integer("max_window_layers").value_or(62);
  return hf.Find("layer_types") || full >= config.num_hidden_layers;
}

// A window that no sequence fills is none.
void ReadWindow(std::string_view type, HfObject& hf, LlamaConfig& config) {
  const bool mistral = HasWindow(type);
  std::optional<int64_t> window = hf.Integer("sliding_window");
  hf.Find("max_window_layers");
  if (!window && (mistral || type == "dots1") && !hf.Holds("sliding_window")) window = 4096;
  if (window && !WindowIsOff(type, hf, config) && *window < config.max_position_embeddings) {
    if (!mistral || *window < 1) {
      hf.Refuse("sliding_window", std::to_string(*window) +
                                      " is not in this version, only null, or no fewer than " +
                                      (mistral ? "1" : "max_position_embeddings"));
    }
    config.sliding_window = *window;
  }
  const auto layers = hf.Find("layer_types");
  if (!layers) return;
  for (const JsonValue& layer : layers->Elements()) {
    if (!layer.Is("\"full_attention\"")) {
      layers->Refuse(layer.Show() + " is not in this version, only \"full_attention\"");
    }
  }
}

// transformers takes 32.0 for 32 in these maps, though nowhere else.
std::optional<int64_t> WholeNumber(HfObject& hf, const char* key) {
  const auto value = hf.Find(key);
  constexpr double kExact = 1e15;
  if (!value || !value->IsNumber() || value->IsInteger()) return hf.Integer(key);
  const double number = value->Number();
  if (number != std::floor(number) || std::abs(number) > kExact)
    return value->Integer();  // Throws.
  return static_cast<int64_t>(number);
}

// Those of a type's own fields that transformers looks at, as it reads them; others may be there.
RopeScaling ReadScaling(RopeScaling::Type type, HfObject& hf, HfObject& rope,
                        int64_t max_positions) {
  RopeScaling scaling{.type = type};
  VisitFields(scaling, [&](const char* name, auto& field) {
    using Field = std::decay_t<decltype(*field)>;
    if constexpr (std::is_same_v<Field, bool>) {
      field = rope.Boolean(name);
    } else if constexpr (std::is_same_v<Field, int64_t>) {
      field = WholeNumber(rope, name);
    } else {
      field = rope.Real(name);
    }
  });
  const bool yarn = type == RopeScaling::Type::kYarn, llama3 = type == RopeScaling::Type::kLlama3;
  if (type == RopeScaling::Type::kDefault) return {};
  if (!yarn && !llama3) return {.type = type, .factor = scaling.factor};
  std::optional<int64_t>& original = scaling.original_max_position_embeddings;
  // One beside the map counts before that in it.
  if (const auto beside = WholeNumber(hf, "original_max_position_embeddings")) original = beside;
  if (!original) original = max_positions;
  if (llama3) {
    return {.type = type,
            .factor = scaling.factor,
            .original_max_position_embeddings = original,
            .low_freq_factor = scaling.low_freq_factor,
            .high_freq_factor = scaling.high_freq_factor};
  }
  scaling.low_freq_factor.reset();
  scaling.high_freq_factor.reset();
  // A value that is null or 0 counts in its own way.
  if (rope.Holds("factor") && !scaling.factor && *original > 0) {
    scaling.factor = static_cast<double>(max_positions) / static_cast<double>(*original);
  }
  if (rope.Holds("truncate") && !scaling.truncate) scaling.truncate = false;
  if (scaling.beta_fast == 0.0) scaling.beta_fast.reset();
  if (scaling.beta_slow == 0.0) scaling.beta_slow.reset();
  if (scaling.mscale.value_or(0) == 0 || scaling.mscale_all_dim.value_or(0) == 0) {
    scaling.mscale.reset();
    scaling.mscale_all_dim.reset();
  }
  return scaling;
}

// rope_theta and rope_scaling, or both as rope_parameters, which newer files have.
void ReadRope(HfObject& hf, LlamaConfig& config) {
  if (const auto theta = hf.Real("rope_theta")) config.rope_theta = *theta;
  const auto older = hf.Find("rope_scaling"), newer = hf.Find("rope_parameters");
  const bool is_empty = older && older->IsObject() && older->Members().empty();
  const auto json = newer && (!older || is_empty) ? newer : older;
  if (!json) return;
  if (!json->IsObject()) json->Refuse(json->Show() + " is not an object");
  HfObject rope(*json);
  if (const auto theta = rope.Real("rope_theta")) config.rope_theta = *theta;
  rope.WantOneOf("partial_rotary_factor", {"1", "1.0"});
  const char* type_key = rope.Find("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(type_key).value_or("default");
  rope.Find("type");
  rope.Find("finetuned");  // Old files of YaRN have it; nobody reads it.
  const auto names = NamesOf(RopeScaling::Type());
  const auto found = std::find(names.begin(), names.end(), type);
  if (found == names.end()) {
    rope.Refuse(type_key, rope.Find(type_key)->Show() + " is not in this version");
  }
  config.rope_scaling = ReadScaling(static_cast<RopeScaling::Type>(found - names.begin()), hf, rope,
                                    config.max_position_embeddings);
  if (const auto unknown = rope.Unasked(); !unknown.empty()) {
    rope.Refuse(unknown[0].first, "is not in this version");
  }
}

}  // namespace

std::vector<LlamaRelative> LlamaRelatives() {
  LlamaConfig llama{.hidden_size = 4096,
                    .intermediate_size = 11008,
                    .num_hidden_layers = 32,
                    .num_attention_heads = 32,
                    .num_key_value_heads = 0,
                    .head_dim = 0,
                    .vocab_size = 32000,
                    .max_position_embeddings = 2048,
                    .rms_norm_eps = 1e-6,
                    .rope_theta = 10000};
  LlamaConfig mistral = llama;
  mistral.intermediate_size = 14336;
  mistral.max_position_embeddings = 131072;
  mistral.num_key_value_heads = 8;
  LlamaConfig qwen2 = llama;
  qwen2.vocab_size = 151936;
  qwen2.intermediate_size = 22016;
  qwen2.max_position_embeddings = 32768;
  qwen2.attention_bias = true;
  qwen2.num_key_value_heads = 32;
  LlamaConfig qwen3 = qwen2;
  qwen3.attention_bias = false;
  qwen3.qk_norm = true;
  qwen3.head_dim = 128;
  return {{"llama", "LlamaForCausalLM", llama},
          {"mistral", "MistralForCausalLM", mistral},
          {"qwen2", "Qwen2ForCausalLM", qwen2},
          {"qwen3", "Qwen3ForCausalLM", qwen3}};
}

HfNames LlamaHfNames() { return {"model.", {".rotary_emb.inv_freq"}, {"embed_tokens.weight"}}; }

std::vector<HfFeature> LlamaFeatures() {
  return {{"hidden_act", {"\"silu\"", "\"swish\""}},
          {"use_sliding_window", {"false"}},
          {"partial_rotary_factor", {"1", "1.0"}},
          {"rope_interleaved", {"false"}},
          {"pretraining_tp", {"0", "1"}}};
}

void ReadLlamaConfig(std::string_view type, HfObject& hf, LlamaConfig& config) {
  // A null stands for the heads where an absent key may not.
  const int64_t heads = config.num_attention_heads, groups = config.num_key_value_heads;
  const bool follow = hf.Holds("num_key_value_heads") || groups == 0;
  config.num_key_value_heads = hf.Integer("num_key_value_heads").value_or(follow ? heads : groups);
  const int64_t quotient = LlamaConfig::HeadDim(config.hidden_size, config.num_attention_heads);
  const bool given = hf.Holds("head_dim") || config.head_dim == 0;
  config.head_dim = hf.Integer("head_dim").value_or(given ? quotient : config.head_dim);
  config.tie_word_embeddings =
      hf.TiesHead(hf.Boolean("tie_word_embeddings").value_or(false), "embed_tokens.weight");
  if (AttentionBiasIsAKey(type)) {
    config.attention_bias = hf.Boolean("attention_bias").value_or(false);
    config.attention_output_bias = config.attention_bias;
  } else {
    hf.WantOneOf("attention_bias", {config.attention_bias ? "true" : "false"});
  }
  if (MlpBiasIsAKey(type)) {
    config.mlp_bias = hf.Boolean("mlp_bias").value_or(false);
  } else {
    hf.WantOneOf("mlp_bias", {"false"});
  }
  ReadRope(hf, config);
  ReadWindow(type, hf, config);
}

const LlamaRelative& LlamaRelativeOf(const std::vector<LlamaRelative>& relatives,
                                     const LlamaConfig& config) {
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
  const bool plain = !config.qk_norm && !config.mlp_bias && !config.attention_bias;
  if (config.sliding_window > 0 && !plain) refuse("sliding_window with qk_norm or a bias");
  const std::string_view type = config.sliding_window > 0 ? "mistral"
                                : config.qk_norm          ? "qwen3"
                                : qwen2                   ? "qwen2"
                                                          : "llama";
  return *std::find_if(relatives.begin(), relatives.end(),
                       [&](const LlamaRelative& r) { return r.model_type == type; });
}

void WriteLlamaConfig(std::string_view type, const LlamaConfig& config, JsonTree& json) {
  json["hidden_act"] = "silu";
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  if (AttentionBiasIsAKey(type)) json["attention_bias"] = config.attention_bias;
  if (MlpBiasIsAKey(type)) json["mlp_bias"] = config.mlp_bias;
  if (HasWindow(type)) json["sliding_window"] = config.sliding_window;
  // The keys that older versions read; newer ones take them over.
  json["rope_theta"] = config.rope_theta;
  JsonTree scaling;  // null.
  if (config.rope_scaling.type != RopeScaling::Type::kDefault) {
    const std::string name(
        NamesOf(RopeScaling::Type())[static_cast<size_t>(config.rope_scaling.type)]);
    scaling = JsonTree::Object({{"rope_type", name}, {"type", name}});
    VisitFields(config.rope_scaling, [&](const char* key, const auto& field) {
      if (field) scaling[key] = *field;
    });
  }
  json["rope_scaling"] = scaling;
}

}  // namespace fsdp
