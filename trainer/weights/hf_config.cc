#include "trainer/weights/hf_config.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/whole_file.h"

namespace fsdp {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

constexpr JsonErrors kErrors{
    .raise = [](const std::string& message) { throw CheckpointError(message); },
    .shows_value = true,
    .integer = "is not an integer",
    .boolean = "is not true or false"};

// An object key by key: null counts as absent. What has not been asked for at the end is ignored.
class Object {
 public:
  explicit Object(JsonValue json) : json_(std::move(json)) {}

  [[noreturn]] void Refuse(const std::string& key, const std::string& reason) const {
    json_.Refuse(key, reason);
  }

  std::optional<JsonValue> Find(const std::string& key) {
    asked_.insert(key);
    return json_.Find(key);
  }
  bool Holds(const std::string& key) const { return json_.Has(key); }  // Null, too.

  std::optional<int64_t> Integer(const std::string& key) {
    const auto value = Find(key);
    return value ? std::optional(value->Integer()) : std::nullopt;
  }
  std::optional<double> Real(const std::string& key) {
    const auto value = Find(key);
    return value ? std::optional(value->Number()) : std::nullopt;
  }
  std::optional<std::string> Text(const std::string& key) {
    const auto value = Find(key);
    return value ? std::optional(value->Text()) : std::nullopt;
  }
  std::optional<bool> Boolean(const std::string& key) {
    const auto value = Find(key);
    return value ? std::optional(value->Boolean()) : std::nullopt;
  }

  // What is not computed here must be absent or have one of these values, which are JSON texts and
  // mean that there is nothing of it to compute.
  void WantOneOf(const std::string& key, const std::vector<const char*>& values) {
    const auto value = Find(key);
    if (!value) return;
    std::string list;
    for (const char* v : values) {
      if (value->Is(v)) return;
      list.append(list.empty() ? "" : " and ").append(v);
    }
    value->Refuse(value->Show() + " is not in this version, only " +
                  (list.empty() ? "null" : list));
  }

  std::vector<std::pair<std::string, JsonValue>> Unasked() const {
    auto members = json_.Members();
    std::erase_if(members, [&](const auto& member) { return asked_.count(member.first) > 0; });
    return members;
  }

 private:
  const JsonValue json_;
  std::set<std::string> asked_;
};

// ---- What all families have ----

// Facts about the files and about how the model is used; no part of what it computes.
constexpr const char* kBookkeeping[] = {
    "_name_or_path", "architectures", "bos_token_id", "dtype",     "eos_token_id",
    "model_type",    "pad_token_id",  "torch_dtype",  "use_cache", "transformers_version"};

// Features that any config.json may ask for.
struct Feature {
  const char* key;
  std::vector<const char*> harmless;  // JSON texts; null always is.
};
const std::vector<Feature>& CommonFeatures() {
  static const std::vector<Feature> features = {
      {"quantization_config", {}},           {"pruned_heads", {"{}"}},
      {"is_encoder_decoder", {"false"}},     {"is_decoder", {"false", "true"}},
      {"add_cross_attention", {"false"}},    {"num_experts", {"0", "1"}},
      {"num_local_experts", {"0", "1"}},     {"n_routed_experts", {"0"}},
      {"final_logit_softcapping", {}},       {"attn_logit_softcapping", {}},
      {"logit_scale", {"1", "1.0"}},         {"embedding_multiplier", {"1", "1.0"}},
      {"residual_multiplier", {"1", "1.0"}}, {"logits_scaling", {"1", "1.0"}},
  };
  return features;
}

// ---- GPT-2 ----

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
const std::vector<Feature>& Gpt2Features() {
  static const std::vector<Feature> features = {
      {"activation_function", {"\"gelu_new\"", "\"gelu_pytorch_tanh\""}},
      {"scale_attn_weights", {"true"}},
      {"scale_attn_by_inverse_layer_idx", {"false"}},
      {"reorder_and_upcast_attn", {"false"}},
      {"tie_word_embeddings", {"true"}},
  };
  return features;
}

Gpt2Config ReadGpt2(Object& hf) {
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
  for (const Feature& f : Gpt2Features()) hf.WantOneOf(f.key, f.harmless);
  return config;
}

nlohmann::ordered_json WriteGpt2(const Gpt2Config& config) {
  nlohmann::ordered_json json = {{"architectures", {"GPT2LMHeadModel"}},
                                 {"model_type", "gpt2"},
                                 {"activation_function", "gelu_new"}};
  for (const auto& [key, field] : kGpt2Integers) json[key] = config.*field;
  for (const auto& [key, field] : kGpt2Reals) json[key] = config.*field;
  json["n_inner"] = config.intermediate_size;
  json["tie_word_embeddings"] = true;
  return json;
}

// ---- Llama and its relatives ----

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

const std::vector<Feature>& LlamaFeatures() {
  static const std::vector<Feature> features = {
      {"hidden_act", {"\"silu\"", "\"swish\""}},
      {"use_sliding_window", {"false"}},
      {"partial_rotary_factor", {"1", "1.0"}},
      {"rope_interleaved", {"false"}},
      {"pretraining_tp", {"0", "1"}},
  };
  return features;
}

// A window that no sequence fills is none.
void CheckWindow(const Relative& family, const LlamaConfig& config, Object& hf) {
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
void ReadRope(Object& hf, LlamaConfig& config) {
  if (const auto theta = hf.Real("rope_theta")) config.rope_theta = *theta;
  const char* key = hf.Holds("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const auto json = hf.Find(key);
  hf.Find("rope_scaling");
  if (!json) return;
  if (!json->IsObject()) json->Refuse(json->Show() + " is not an object");
  Object rope(*json);
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

LlamaConfig ReadLlama(const Relative& family, Object& hf) {
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
  for (const Feature& f : LlamaFeatures()) hf.WantOneOf(f.key, f.harmless);
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

nlohmann::ordered_json WriteLlama(const LlamaConfig& config) {
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

// ---- Both ----

// Dropout in places where we have none: refused, whatever the key is called. Heads of other tasks
// are not built.
void RefuseOtherDropouts(const std::vector<std::pair<std::string, JsonValue>>& unasked,
                         const Object& hf) {
  for (const auto& [key, value] : unasked) {
    if (key == "summary_first_dropout" || key == "classifier_dropout") continue;
    const bool drops = key.find("drop") != std::string::npos;
    if (drops && value.IsNumber() && !value.Is("0")) {
      hf.Refuse(key, value.Show() + " is not in this version, only 0");
    }
  }
}

// One id or a list of them; what is none is nobody's.
std::vector<int32_t> Ids(const std::optional<JsonValue>& value) {
  std::vector<int32_t> ids;
  const auto add = [&](const JsonValue& id) {
    if (id.IsInteger(0, kMaxVocabSize)) ids.push_back(static_cast<int32_t>(id.Integer()));
  };
  if (!value) return ids;
  if (!value->IsList()) {
    add(*value);
  } else {
    for (const JsonValue& id : value->Elements()) add(id);
  }
  return ids;
}

JsonValue Parse(std::string_view text, const std::string& path) {
  if (text.size() > kMaxBytes) {
    throw CheckpointError(path + ": has " + std::to_string(text.size()) + " bytes, the most is " +
                          std::to_string(kMaxBytes));
  }
  JsonValue json = ParseJson(text, path, kErrors);
  if (!json.IsObject()) json.Refuse("is not a JSON object");
  return json;
}

}  // namespace

HfConfig ParseHfConfig(std::string_view text, const std::string& path) {
  Object hf(Parse(text, path));
  HfConfig config;
  const std::string type = hf.Text("model_type").value_or("none");
  const auto& relatives = Relatives();
  const auto relative = std::find_if(relatives.begin(), relatives.end(),
                                     [&](const Relative& r) { return r.model_type == type; });
  if (type == "gpt2") {
    config.shape = ReadGpt2(hf);
  } else if (relative != relatives.end()) {
    config.shape = ReadLlama(*relative, hf);
  } else {
    const auto given = hf.Find("model_type");
    hf.Refuse("model_type", (given ? given->Show() : "\"none\"") +
                                " is not in this version, only gpt2, llama, mistral, qwen2, qwen3");
  }
  for (const Feature& f : CommonFeatures()) hf.WantOneOf(f.key, f.harmless);
  for (const ShapeMistake& mistake : Validate(config.shape)) {
    hf.Refuse(mistake.field, mistake.message);
  }
  for (const char* key : kBookkeeping) hf.Find(key);
  config.eos = Ids(hf.Find("eos_token_id"));
  const auto unasked = hf.Unasked();
  for (const auto& [key, value] : unasked) config.ignored.push_back(key);
  RefuseOtherDropouts(unasked, hf);
  return config;
}

HfConfig ReadHfConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  return ParseHfConfig(ReadWholeFile(path), path);
}

std::vector<int32_t> ReadHfEos(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    std::vector<int32_t> ids = Ids(Parse(ReadWholeFile(path), path).Find("eos_token_id"));
    if (!ids.empty()) return ids;
  }
  return ReadHfConfig(directory).eos;
}

namespace {

nlohmann::ordered_json OrNull(const std::optional<int32_t>& id) {
  return id ? nlohmann::ordered_json(*id) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string HfModelType(const ModelShape& shape) {
  const auto* llama = std::get_if<LlamaConfig>(&shape);
  return llama == nullptr ? "gpt2" : RelativeOf(*llama).model_type;
}

std::string HfGenerationConfigToJson(const HfTokenIds& ids) {
  return nlohmann::ordered_json{{"bos_token_id", OrNull(ids.bos)},
                                {"eos_token_id", OrNull(ids.eos)},
                                {"pad_token_id", OrNull(ids.pad ? ids.pad : ids.eos)}}
             .dump(2) +
         "\n";
}

std::string HfConfigToJson(const ModelShape& shape, std::string_view dtype, const HfTokenIds& ids) {
  nlohmann::ordered_json json = std::holds_alternative<Gpt2Config>(shape)
                                    ? WriteGpt2(std::get<Gpt2Config>(shape))
                                    : WriteLlama(std::get<LlamaConfig>(shape));
  // Null where there is none: absent, some families' defaults would be.
  json["bos_token_id"] = OrNull(ids.bos);
  json["eos_token_id"] = OrNull(ids.eos);
  json["pad_token_id"] = OrNull(ids.pad);
  json["torch_dtype"] = dtype;
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

}  // namespace fsdp
