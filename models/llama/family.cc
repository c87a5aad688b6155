// Llama and its relatives as a family: its fields and published sizes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/llama/config.h"
#include "models/llama/hf_config.h"
#include "models/llama/rows.h"
#include "models/table_family.h"
#include "trainer/core/units.h"
#include "trainer/ops/attention_inputs.h"

namespace fsdp {
namespace {

using Config = LlamaConfig;

FieldMap ToMap(const RopeScaling& scaling) {
  FieldMap map;
  map["type"] = std::string(NamesOf(scaling.type)[static_cast<size_t>(scaling.type)]);
  VisitFields(scaling, [&](const char* name, const auto& value) {
    if (value) map[name] = *value;
  });
  return map;
}

RopeScaling FromMap(const FieldMap& map) {
  RopeScaling scaling;
  constexpr auto kNames = NamesOf(RopeScaling::Type());
  const auto& type = std::get<std::string>(map.at("type"));
  scaling.type = static_cast<RopeScaling::Type>(std::find(kNames.begin(), kNames.end(), type) -
                                                kNames.begin());
  VisitFields(scaling, [&](const char* name, auto& value) {
    using T = std::decay_t<decltype(*value)>;
    if (const auto at = map.find(name); at != map.end()) value = std::get<T>(at->second);
  });
  return scaling;
}

// Which members a type has is judged with the whole shape.
MapRange ScalingRange() {
  const RealRange above_zero{.above = 0};
  constexpr auto kTypes = NamesOf(RopeScaling::Type());
  return {
      .members =
          {{"type",
            NameRange{{kTypes.begin(), kTypes.end()}, {"longrope"}},
            "default: not stretched. linear, dynamic, llama3, yarn: as in transformers' "
            "modeling_rope_utils.",
            {"rope_type"}},
           {"factor", RealRange{.at_least = 1},
            "How many times longer sequences become; for every type except default."},
           {"original_max_position_embeddings", IntegerRange{1, kMaxPositions},
            "llama3, yarn: longest sequence before stretching."},
           {"low_freq_factor", above_zero,
            "llama3: wavelengths above the original length divided by this are fully stretched."},
           {"high_freq_factor", above_zero,
            "llama3: wavelengths below the original length divided by this are left alone."},
           {"beta_fast", above_zero,
            "yarn: a wavelength with at least this many turns in the original length is left "
            "alone. null: 32."},
           {"beta_slow", above_zero,
            "yarn: a wavelength with fewer turns than this is fully stretched. null: 1."},
           {"attention_factor", above_zero,
            "yarn: multiplies sines and cosines. null: 0.1 x ln(factor) + 1, or computed from "
            "mscale."},
           {"mscale", above_zero, "yarn: with mscale_all_dim, gives attention_factor."},
           {"mscale_all_dim", above_zero, "yarn: see mscale."},
           {"truncate", BooleanRange(),
            "yarn: borders between wavelengths are rounded to whole numbers. null: true."}},
      .standard = ToMap(RopeScaling())};
}

}  // namespace

std::vector<FieldRow<Config>> LlamaRows() {
  FieldRow<Config> head_dim =
      Row("head_dim", &Config::head_dim, IntegerRange{1, kMaxHeadDim},
          "Width of a head; even for llama",
          "hidden_size / num_attention_heads; the preset's, unless one of these is given beside it",
          {"head_size", "kv_channels"});
  head_dim.judged_by_code = true;
  return {
      Row("hidden_size", &Config::hidden_size, IntegerRange{1, kMaxHiddenSize},
          "Width of the residual stream", "4096", {"n_embd", "d_model", "hidden_dim"},
          "hidden_size"),
      Row("intermediate_size", &Config::intermediate_size, IntegerRange{1, kMaxIntermediateSize},
          "Width inside the MLP",
          "8/3 of hidden_size, rounded up to a multiple of 256; the preset's, unless hidden_size "
          "is given beside it",
          {"n_inner", "d_ff", "ffn_dim"}, "intermediate_size"),
      Row("num_hidden_layers", &Config::num_hidden_layers, IntegerRange{1, kMaxHiddenLayers},
          "Transformer blocks", "32", {"n_layer", "n_layers", "num_layers"}, "num_hidden_layers"),
      Row("num_attention_heads", &Config::num_attention_heads, IntegerRange{1, kMaxHeads},
          "Attention heads", "32", {"n_head", "n_heads", "num_heads"}, "num_attention_heads"),
      Row("num_key_value_heads", &Config::num_key_value_heads, IntegerRange{1, kMaxHeads},
          "Heads of keys and values, each shared by a group of attention heads: a divisor of "
          "num_attention_heads",
          "num_attention_heads; the preset's, unless that is given beside it",
          {"n_kv_heads", "num_kv_heads", "n_query_groups"}),
      head_dim,
      Row("vocab_size", &Config::vocab_size, IntegerRange{1, kMaxVocabSize},
          "Tokens of the vocabulary", "32000", {"n_vocab"}, "vocab_size"),
      Row("max_position_embeddings", &Config::max_position_embeddings,
          IntegerRange{1, kMaxPositions}, "Longest sequence, in tokens", "4096",
          {"n_positions", "n_ctx", "block_size"}, "max_position_embeddings"),
      Row("rms_norm_eps", &Config::rms_norm_eps, RealRange{.at_least = 0, .at_most = 1},
          "Added to the mean square in every RMSNorm", "1e-5", {}, "rms_norm_eps"),
      Row("rope_theta", &Config::rope_theta, RealRange{.above = 1},
          "Base of the rotary wavelengths", "10000", {"rope_base", "rotary_base"}),
      MapRow("rope_scaling", &Config::rope_scaling, ScalingRange(),
             "How rotary wavelengths are stretched for longer sequences. A map in a later file "
             "replaces that of earlier files",
             "the preset's; without one they are not stretched", {"rope_parameters"}, &ToMap,
             &FromMap),
      Row("tie_word_embeddings", &Config::tie_word_embeddings, BooleanRange(),
          "The head is the token embedding", "false"),
      Row("attention_bias", &Config::attention_bias, BooleanRange(), "Biases of q, k and v",
          "false", {"qkv_bias"}),
      Row("attention_output_bias", &Config::attention_output_bias, BooleanRange(),
          "Bias of attention's output projection", "false"),
      Row("mlp_bias", &Config::mlp_bias, BooleanRange(), "Biases of gate, up and down", "false"),
      Row("qk_norm", &Config::qk_norm, BooleanRange(), "An RMSNorm on each head of q and k",
          "false", {"use_qk_norm", "norm_qk"}),
      Row("initializer_range", &Config::initializer_range, RealRange{.at_least = 0, .at_most = 1},
          "Standard deviation of the initial weights", "0.02", {"init_std"}, "initializer_range"),
      FreeRow("sliding_window", &Config::sliding_window, IntegerRange{0, kMaxPositions},
              "Tokens that attention reaches back, as Mistral's. Longer sequences are refused. 0: "
              "no limit",
              "0", {}, ""),
      DropoutRow(
          "attention_dropout", &Config::attention_dropout,
          "Share of attention's probabilities that are dropped in training, after the softmax",
          {"attn_pdrop"}, "attention_dropout"),
  };
}

namespace {

// The published sizes, kind by kind, small to large, as config.json has them: of the base model,
// and for Qwen3, whose largest has none, of the post-trained one. Parameters count a tied embedding
// once, as the published checkpoints hold it.
std::vector<std::pair<std::string_view, Config>> Presets() {
  std::vector<std::pair<std::string_view, Config>> all;
  struct Size {
    int64_t hidden, inner, layers, heads, groups;
  };
  const auto add = [&](std::string_view name, Config c, const Size& s) {
    c.hidden_size = s.hidden;
    c.intermediate_size = s.inner;
    c.num_hidden_layers = s.layers;
    c.num_attention_heads = s.heads;
    c.num_key_value_heads = s.groups;
    all.push_back({name, c});
  };

  const Config llama2;  // A head of 128, as the defaults have it.
  add("llama2-7b", llama2, {4096, 11008, 32, 32, 32});
  add("llama2-13b", llama2, {5120, 13824, 40, 40, 40});
  add("llama2-70b", llama2, {8192, 28672, 80, 64, 8});

  Config llama3 = llama2;
  llama3.vocab_size = 128256;
  llama3.max_position_embeddings = 8192;
  llama3.rope_theta = 500000;
  add("llama3-8b", llama3, {4096, 14336, 32, 32, 8});
  add("llama3-70b", llama3, {8192, 28672, 80, 64, 8});

  Config llama31 = llama3;
  llama31.max_position_embeddings = 131072;
  llama31.rope_scaling.type = RopeScaling::Type::kLlama3;
  llama31.rope_scaling.factor = 8;
  llama31.rope_scaling.original_max_position_embeddings = 8192;
  llama31.rope_scaling.low_freq_factor = 1;
  llama31.rope_scaling.high_freq_factor = 4;
  add("llama3.1-8b", llama31, {4096, 14336, 32, 32, 8});
  add("llama3.1-70b", llama31, {8192, 28672, 80, 64, 8});
  add("llama3.1-405b", llama31, {16384, 53248, 126, 128, 8});

  Config llama32 = llama31;
  llama32.rope_scaling.factor = 32;
  llama32.tie_word_embeddings = true;
  llama32.head_dim = 64;
  add("llama3.2-1b", llama32, {2048, 8192, 16, 32, 8});
  llama32.head_dim = 128;
  add("llama3.2-3b", llama32, {3072, 8192, 28, 24, 8});

  Config qwen25;
  qwen25.vocab_size = 151936;
  qwen25.max_position_embeddings = 32768;
  qwen25.rms_norm_eps = 1e-6;
  qwen25.rope_theta = 1e6;
  qwen25.attention_bias = true;
  qwen25.tie_word_embeddings = true;
  qwen25.head_dim = 64;
  add("qwen2.5-0.5b", qwen25, {896, 4864, 24, 14, 2});
  qwen25.head_dim = 128;
  qwen25.max_position_embeddings = 131072;
  add("qwen2.5-1.5b", qwen25, {1536, 8960, 28, 12, 2});
  qwen25.max_position_embeddings = 32768;
  add("qwen2.5-3b", qwen25, {2048, 11008, 36, 16, 2});
  qwen25.max_position_embeddings = 131072;
  qwen25.vocab_size = 152064;
  qwen25.tie_word_embeddings = false;
  add("qwen2.5-7b", qwen25, {3584, 18944, 28, 28, 4});
  qwen25.rms_norm_eps = 1e-5;
  add("qwen2.5-14b", qwen25, {5120, 13824, 48, 40, 8});
  add("qwen2.5-32b", qwen25, {5120, 27648, 64, 40, 8});
  add("qwen2.5-72b", qwen25, {8192, 29568, 80, 64, 8});

  Config qwen3;
  qwen3.vocab_size = 151936;
  qwen3.max_position_embeddings = 40960;
  qwen3.rms_norm_eps = 1e-6;
  qwen3.rope_theta = 1e6;
  qwen3.qk_norm = true;
  qwen3.tie_word_embeddings = true;
  add("qwen3-0.6b", qwen3, {1024, 3072, 28, 16, 8});
  add("qwen3-1.7b", qwen3, {2048, 6144, 28, 16, 8});
  add("qwen3-4b", qwen3, {2560, 9728, 36, 32, 8});
  qwen3.tie_word_embeddings = false;
  add("qwen3-8b", qwen3, {4096, 12288, 36, 32, 8});
  add("qwen3-14b", qwen3, {5120, 17408, 40, 40, 8});
  add("qwen3-32b", qwen3, {5120, 25600, 64, 64, 8});

  Config mistral;
  mistral.vocab_size = 32768;
  mistral.max_position_embeddings = 32768;
  mistral.rope_theta = 1e6;
  add("mistral-7b-v0.3", mistral, {4096, 14336, 32, 32, 8});
  return all;
}

}  // namespace

void FillLlamaDependent(Config& config, const ModelFamily::Given& given) {
  const bool hidden = given("hidden_size"), heads = given("num_attention_heads");
  if (hidden && !given("intermediate_size")) {
    config.intermediate_size = LlamaConfig::IntermediateSize(config.hidden_size);
  }
  if (heads && !given("num_key_value_heads")) {
    config.num_key_value_heads = config.num_attention_heads;
  }
  if ((hidden || heads) && !given("head_dim")) {
    config.head_dim = LlamaConfig::HeadDim(config.hidden_size, config.num_attention_heads);
  }
}

namespace {

// Which fields a type has: needed, or at will.
struct ScalingFields {
  std::vector<std::string_view> needed, optional;
};

const ScalingFields& FieldsOf(RopeScaling::Type type) {
  static const ScalingFields none, factor{{"factor"}, {}},
      llama3{{"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
             {}},
      yarn{{"factor", "original_max_position_embeddings"},
           {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}};
  switch (type) {
    case RopeScaling::Type::kDefault:
      return none;
    case RopeScaling::Type::kLinear:
    case RopeScaling::Type::kDynamic:
      return factor;
    case RopeScaling::Type::kLlama3:
      return llama3;
    case RopeScaling::Type::kYarn:
      return yarn;
  }
  return none;
}

bool Holds(const std::vector<std::string_view>& names, std::string_view name) {
  for (const std::string_view n : names) {
    if (n == name) return true;
  }
  return false;
}

void CheckScaling(const Config& c, ShapeChecks& checks) {
  const RopeScaling& s = c.rope_scaling;
  const std::string type(NamesOf(s.type)[static_cast<size_t>(s.type)]);
  const std::string prefix = "rope_scaling.";
  const ScalingFields& fields = FieldsOf(s.type);
  VisitFields(s, [&](const char* name, const auto& field) {
    const bool needed = Holds(fields.needed, name);
    if (needed && !field) checks.Add(prefix + name, "`" + type + "` needs `" + name + "`");
    if (field && !needed && !Holds(fields.optional, name)) {
      checks.Add(prefix + name, "does not belong to `" + type + "`");
    }
  });
  const auto want = [&](const char* name, bool holds, const char* what, double value) {
    if (!holds) {
      checks.Add(prefix + name, std::string("want ") + what + ", got " + Shortest(value));
    }
  };
  const auto positive = [&](const char* name, const std::optional<double>& value) {
    if (value) want(name, std::isfinite(*value) && *value > 0, "a number above 0", *value);
  };
  if (s.factor) {
    want("factor", std::isfinite(*s.factor) && *s.factor >= 1, "a number of at least 1", *s.factor);
  }
  if (s.original_max_position_embeddings) {
    checks.Integer(prefix + "original_max_position_embeddings", *s.original_max_position_embeddings,
                   kMaxPositions);
  }
  positive("low_freq_factor", s.low_freq_factor);
  positive("high_freq_factor", s.high_freq_factor);
  positive("beta_fast", s.beta_fast);
  positive("beta_slow", s.beta_slow);
  positive("attention_factor", s.attention_factor);
  positive("mscale", s.mscale);
  positive("mscale_all_dim", s.mscale_all_dim);
  if (s.low_freq_factor && s.high_freq_factor && *s.high_freq_factor <= *s.low_freq_factor) {
    want("high_freq_factor", false, "one above low_freq_factor", *s.high_freq_factor);
  }
  if (s.type == RopeScaling::Type::kYarn && s.beta_fast.value_or(32) < s.beta_slow.value_or(1)) {
    want("beta_fast", false, "one of at least beta_slow", s.beta_fast.value_or(32));
  }
  if (s.type == RopeScaling::Type::kDynamic && c.head_dim == 2) {
    checks.Add("head_dim", "`dynamic` scaling needs more than 2",
               {"rope_scaling.type", "hidden_size", "num_attention_heads"});
  }
}

}  // namespace

void ValidateLlama(const Config& c, ShapeChecks& checks) {
  const std::vector<std::string> leaders = {"hidden_size", "num_attention_heads"};
  checks.HeadDim("head_dim", c.head_dim, leaders);
  if (checks.AreGood({"num_attention_heads", "num_key_value_heads"}) &&
      c.num_attention_heads % c.num_key_value_heads != 0) {
    checks.Add("num_key_value_heads",
               std::to_string(c.num_key_value_heads) + " key and value heads do not divide " +
                   std::to_string(c.num_attention_heads) + " heads",
               {"num_attention_heads"});
  }
  if (checks.AreGood({"head_dim"}) && c.head_dim % 2 != 0) {
    checks.Add("head_dim", std::to_string(c.head_dim) + " cannot be rotated in pairs: it is odd",
               leaders);
  }
  CheckScaling(c, checks);
}

void ShrinkLlama(Config& c) {
  const Config standard;
  c.hidden_size = c.intermediate_size = 1;
  c.num_hidden_layers = std::clamp<int64_t>(c.num_hidden_layers, 1, kMaxHiddenLayers);
  c.num_attention_heads = c.num_key_value_heads = 1;
  c.head_dim = 2;
  c.vocab_size = c.max_position_embeddings = 1;
  c.rms_norm_eps = standard.rms_norm_eps;
  c.rope_theta = standard.rope_theta;
  c.rope_scaling = {};
  c.sliding_window = 0;
  c.initializer_range = 0;
  c.attention_dropout = 0;
}

DecoderShape DecoderOfLlama(const Config& c) {
  return {.vocab_size = c.vocab_size,
          .max_positions = c.max_positions(),
          .hidden_size = c.hidden_size,
          .num_layers = c.num_hidden_layers,
          .num_heads = c.num_attention_heads,
          .num_key_value_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .widest_row = std::max(
              {c.query_size() + 2 * c.key_value_size(), 2 * c.intermediate_size, c.hidden_size})};
}

namespace {

FamilyTable<Config> Table() {
  return {.name = "llama",
          .rows = LlamaRows(),
          .make = &MakeLlama,
          .relatives = "also Mistral, Qwen2 and Qwen3",
          .kin = {"mistral", "qwen", "qwen2", "qwen2.5", "qwen3"},
          .presets = Presets(),
          .fill_dependent = &FillLlamaDependent,
          .validate = &ValidateLlama,
          .shrink = &ShrinkLlama,
          .decoder = &DecoderOfLlama,
          .head = {"", {"lm_head.weight"}},
          .hf = LlamaRelatives(),
          .hf_names = LlamaHfNames(),
          .hf_features = LlamaFeatures(),
          .read_hf = [](const LlamaRelative& relative, HfObject& hf,
                        Config& config) { ReadLlamaConfig(relative.model_type, hf, config); },
          .write_hf = [](const LlamaRelative& relative, const Config& config,
                         JsonTree& json) { WriteLlamaConfig(relative.model_type, config, json); },
          .relative_of = &LlamaRelativeOf};
}

}  // namespace

int64_t LlamaConfig::max_positions() const {
  if (sliding_window > 0) return std::min(sliding_window, max_position_embeddings);
  if (rope_scaling.type != RopeScaling::Type::kDynamic || !rope_scaling.factor) {
    return max_position_embeddings;
  }
  const double stretched = *rope_scaling.factor * static_cast<double>(max_position_embeddings);
  return stretched < static_cast<double>(kMaxPositions) ? static_cast<int64_t>(stretched)
                                                        : kMaxPositions;
}

namespace llama {

const ModelFamily& Family() {
  static const TableFamily<LlamaConfig> family(Table());
  return family;
}

}  // namespace llama

const ModelFamily& FamilyOfConfig(const LlamaConfig&) { return llama::Family(); }

}  // namespace fsdp
