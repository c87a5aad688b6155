#include "models/llama/config.h"

#include <cmath>

namespace fsdp {
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

void CheckScaling(const LlamaConfig& c, ShapeChecks& checks) {
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
      checks.Add(prefix + name, std::string("want ") + what + ", got " + std::to_string(value));
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
    checks.Add("head_dim", "`dynamic` scaling needs more than 2");
  }
}

}  // namespace

int64_t LlamaConfig::max_positions() const {
  if (rope_scaling.type != RopeScaling::Type::kDynamic || !rope_scaling.factor) {
    return max_position_embeddings;
  }
  const double stretched = *rope_scaling.factor * static_cast<double>(max_position_embeddings);
  return stretched < static_cast<double>(kMaxPositions) ? static_cast<int64_t>(stretched)
                                                        : kMaxPositions;
}

void FillDependent(LlamaConfig& config, const std::function<bool(std::string_view)>& given) {
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

int64_t NumParameters(const LlamaConfig& c) {
  const int64_t h = c.hidden_size, i = c.intermediate_size;
  const int64_t q = c.query_size(), qkv = q + 2 * c.key_value_size();
  int64_t block = 2 * h + (h * qkv + q * h) + 3 * h * i;
  if (c.attention_bias) block += qkv;
  if (c.attention_output_bias) block += h;
  if (c.mlp_bias) block += 2 * i + h;
  if (c.qk_norm) block += 2 * c.head_dim;
  return (c.tie_word_embeddings ? 1 : 2) * c.vocab_size * h + c.num_hidden_layers * block + h;
}

std::vector<ShapeMistake> Validate(const LlamaConfig& c) {
  ShapeChecks checks;
  checks.Integer("hidden_size", c.hidden_size, kMaxHiddenSize);
  checks.Integer("intermediate_size", c.intermediate_size, kMaxIntermediateSize);
  checks.Integer("num_hidden_layers", c.num_hidden_layers, kMaxHiddenLayers);
  const bool heads = checks.Integer("num_attention_heads", c.num_attention_heads, kMaxHeads);
  const bool groups = checks.Integer("num_key_value_heads", c.num_key_value_heads, kMaxHeads);
  const bool dim = checks.HeadDim("head_dim", c.head_dim);
  checks.Integer("vocab_size", c.vocab_size, kMaxVocabSize);
  checks.Integer("max_position_embeddings", c.max_position_embeddings, kMaxPositions);
  checks.AtLeastZero("rms_norm_eps", c.rms_norm_eps);
  checks.AtLeastZero("initializer_range", c.initializer_range);
  VisitDropouts(c, [&](const char* field, double rate) { checks.Share(field, rate); });
  if (!std::isfinite(c.rope_theta) || c.rope_theta <= 1) {
    checks.Add("rope_theta", "want a number above 1, got " + std::to_string(c.rope_theta));
  }
  if (heads && groups && c.num_attention_heads % c.num_key_value_heads != 0) {
    checks.Add("num_key_value_heads", std::to_string(c.num_key_value_heads) +
                                          " key and value heads do not divide " +
                                          std::to_string(c.num_attention_heads) + " heads");
  }
  if (dim && c.head_dim % 2 != 0) {
    checks.Add("head_dim", std::to_string(c.head_dim) + " cannot be rotated in pairs: it is odd");
  }
  CheckScaling(c, checks);
  return checks.Take();
}

std::span<const LlamaPreset> LlamaPresets() {
  static const std::vector<LlamaPreset> presets = [] {
    std::vector<LlamaPreset> all;
    struct Size {
      int64_t hidden, inner, layers, heads, groups;
    };
    const auto add = [&](std::string_view name, LlamaConfig c, const Size& s) {
      c.hidden_size = s.hidden;
      c.intermediate_size = s.inner;
      c.num_hidden_layers = s.layers;
      c.num_attention_heads = s.heads;
      c.num_key_value_heads = s.groups;
      all.push_back({name, c});
    };

    const LlamaConfig llama2;  // A head of 128, as the defaults have it.
    add("llama2-7b", llama2, {4096, 11008, 32, 32, 32});
    add("llama2-13b", llama2, {5120, 13824, 40, 40, 40});
    add("llama2-70b", llama2, {8192, 28672, 80, 64, 8});

    LlamaConfig llama3 = llama2;
    llama3.vocab_size = 128256;
    llama3.max_position_embeddings = 8192;
    llama3.rope_theta = 500000;
    add("llama3-8b", llama3, {4096, 14336, 32, 32, 8});
    add("llama3-70b", llama3, {8192, 28672, 80, 64, 8});

    LlamaConfig llama31 = llama3;
    llama31.max_position_embeddings = 131072;
    llama31.rope_scaling.type = RopeScaling::Type::kLlama3;
    llama31.rope_scaling.factor = 8;
    llama31.rope_scaling.original_max_position_embeddings = 8192;
    llama31.rope_scaling.low_freq_factor = 1;
    llama31.rope_scaling.high_freq_factor = 4;
    add("llama3.1-8b", llama31, {4096, 14336, 32, 32, 8});
    add("llama3.1-70b", llama31, {8192, 28672, 80, 64, 8});
    add("llama3.1-405b", llama31, {16384, 53248, 126, 128, 8});

    LlamaConfig llama32 = llama31;
    llama32.rope_scaling.factor = 32;
    llama32.tie_word_embeddings = true;
    llama32.head_dim = 64;
    add("llama3.2-1b", llama32, {2048, 8192, 16, 32, 8});
    llama32.head_dim = 128;
    add("llama3.2-3b", llama32, {3072, 8192, 28, 24, 8});

    LlamaConfig qwen25;
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

    LlamaConfig qwen3;
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

    LlamaConfig mistral;
    mistral.vocab_size = 32768;
    mistral.max_position_embeddings = 32768;
    mistral.rope_theta = 1e6;
    add("mistral-7b-v0.3", mistral, {4096, 14336, 32, 32, 8});
    return all;
  }();
  return presets;
}

}  // namespace fsdp
