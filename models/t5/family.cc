// T5 as a family: its fields, published sizes, and config.json.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/t5/config.h"
#include "models/table_family.h"
#include "trainer/ops/attention_inputs.h"

namespace fsdp {
namespace {

using Config = T5Config;

constexpr const char* kEmbedding = "shared.weight";
constexpr int64_t kMaxBuckets = int64_t{1} << 16;

std::vector<FieldRow<Config>> Rows() {
  return {
      Row("hidden_size", &Config::hidden_size, IntegerRange{1, kMaxHiddenSize},
          "Width of the residual stream", "512", {"n_embd", "d_model", "hidden_dim"}, "d_model"),
      Row("intermediate_size", &Config::intermediate_size, IntegerRange{1, kMaxIntermediateSize},
          "Width inside the MLP", "4 x hidden_size", {"n_inner", "d_ff", "ffn_dim"}, "d_ff"),
      Row("num_hidden_layers", &Config::num_hidden_layers, IntegerRange{1, kMaxHiddenLayers},
          "Transformer blocks", "6", {"n_layer", "n_layers", "num_layers"}, "num_layers"),
      Row("num_decoder_layers", &Config::num_decoder_layers, IntegerRange{1, kMaxHiddenLayers},
          "Blocks of the decoder; num_hidden_layers counts the encoder's", "num_hidden_layers"),
      Row("num_attention_heads", &Config::num_attention_heads, IntegerRange{1, kMaxHeads},
          "Attention heads", "8", {"n_head", "n_heads", "num_heads"}, "num_heads"),
      Row("head_dim", &Config::head_dim, IntegerRange{1, kMaxHeadDim}, "Width of a head", "64",
          {"d_kv", "head_size", "kv_channels"}, "d_kv"),
      Row("vocab_size", &Config::vocab_size, IntegerRange{1, kMaxVocabSize},
          "Tokens of the vocabulary", "32128", {"n_vocab"}, "vocab_size"),
      Row("relative_attention_num_buckets", &Config::relative_attention_num_buckets,
          IntegerRange{4, kMaxBuckets},
          "Biases of a head, one for each range of distances from query to key", "32", {},
          "relative_attention_num_buckets"),
      Row("relative_attention_max_distance", &Config::relative_attention_max_distance,
          IntegerRange{1, kMaxPositions}, "Distance from which on all pairs share one bias", "128",
          {}, "relative_attention_max_distance"),
      Row("rms_norm_eps", &Config::rms_norm_eps, RealRange{.at_least = 0, .at_most = 1},
          "Added to the mean square in every RMSNorm", "1e-6", {}, "layer_norm_epsilon"),
      Row("gated_mlp", &Config::gated_mlp, BooleanRange(),
          "The MLP is a gated GELU, as in T5 v1.1, in place of ReLU", "false"),
      Row("tie_word_embeddings", &Config::tie_word_embeddings, BooleanRange(),
          "The head is the token embedding", "true"),
      Row("scale_decoder_outputs", &Config::scale_decoder_outputs, BooleanRange(),
          "Whether the decoder's output is multiplied by hidden_size^-0.5 before the head",
          "tie_word_embeddings"),
      Row("initializer_factor", &Config::initializer_factor, RealRange{.at_least = 0},
          "Multiplies the standard deviation of all initial weights", "1", {},
          "initializer_factor"),
      DropoutRow("dropout_rate", &Config::dropout_rate,
                 "Share of the elements of embeddings, branches, inner activations, attention's "
                 "probabilities and both stacks' outputs that are dropped in training",
                 {}, "dropout_rate"),
  };
}

Config SizeOf(int64_t hidden, int64_t intermediate, int64_t heads, int64_t head_dim,
              int64_t layers) {
  return {.hidden_size = hidden,
          .intermediate_size = intermediate,
          .num_hidden_layers = layers,
          .num_attention_heads = heads,
          .head_dim = head_dim};
}

Config V11(Config config) {
  config.gated_mlp = true;
  config.tie_word_embeddings = config.scale_decoder_outputs = false;
  return config;
}

// The published sizes of both versions, and two of the FSDP paper's section 5.2, whose shapes are
// those of github.com/lessw2020/transformer_framework.
std::vector<std::pair<std::string_view, Config>> Presets() {
  return {{"t5-small", SizeOf(512, 2048, 8, 64, 6)},
          {"t5-base", SizeOf(768, 3072, 12, 64, 12)},
          {"t5-611m", SizeOf(1024, 2816, 16, 64, 24)},
          {"t5-large", SizeOf(1024, 4096, 16, 64, 24)},
          {"t5-2.28b", SizeOf(2048, 5120, 32, 64, 24)},
          {"t5-3b", SizeOf(1024, 16384, 32, 128, 24)},
          {"t5-11b", SizeOf(1024, 65536, 128, 128, 24)},
          {"t5-v1.1-small", V11(SizeOf(512, 1024, 6, 64, 8))},
          {"t5-v1.1-base", V11(SizeOf(768, 2048, 12, 64, 12))},
          {"t5-v1.1-large", V11(SizeOf(1024, 2816, 16, 64, 24))},
          {"t5-v1.1-xl", V11(SizeOf(2048, 5120, 32, 64, 24))},
          {"t5-v1.1-xxl", V11(SizeOf(4096, 10240, 64, 64, 24))}};
}

void FillDependent(Config& config, const ModelFamily::Given& given) {
  const auto follows = [&](const char* field, const char* leader) {
    return given(leader) && !given(field);
  };
  if (follows("intermediate_size", "hidden_size")) {
    config.intermediate_size = 4 * config.hidden_size;
  }
  if (follows("num_decoder_layers", "num_hidden_layers")) {
    config.num_decoder_layers = config.num_hidden_layers;
  }
  if (follows("scale_decoder_outputs", "tie_word_embeddings")) {
    config.scale_decoder_outputs = config.tie_word_embeddings;
  }
}

void Validate(const Config& c, ShapeChecks& checks) {
  const int64_t buckets = c.relative_attention_num_buckets;
  if (!checks.AreGood({"relative_attention_num_buckets", "relative_attention_max_distance"}) ||
      c.relative_attention_max_distance > buckets / 2) {
    return;
  }
  checks.Add("relative_attention_max_distance",
             std::to_string(c.relative_attention_max_distance) +
                 " is not above half of relative_attention_num_buckets, " + std::to_string(buckets),
             {"relative_attention_num_buckets"});
}

void Shrink(Config& c) {
  const Config whole = c;
  const auto layers = [](int64_t n) { return std::clamp<int64_t>(n, 1, kMaxHiddenLayers); };
  c = {.hidden_size = 1,
       .intermediate_size = 1,
       .num_hidden_layers = layers(whole.num_hidden_layers),
       .num_decoder_layers = layers(whole.num_decoder_layers),
       .num_attention_heads = 1,
       .head_dim = 1,
       .vocab_size = 1,
       .gated_mlp = whole.gated_mlp,
       .tie_word_embeddings = whole.tie_word_embeddings,
       .initializer_factor = 0};
}

// transformers 4 scales the decoder's output where the head is tied; 5 has a key for it and ties
// where the files hold no head, or a copy of the embedding.
void ReadHf(const HfRelative<Config>&, HfObject& hf, Config& config) {
  config.num_decoder_layers = hf.Integer("num_decoder_layers").value_or(config.num_hidden_layers);
  hf.WantOneOf("feed_forward_proj", {"\"relu\"", "\"gated-gelu\""});
  config.gated_mlp = hf.Text("feed_forward_proj").value_or("relu") == "gated-gelu";
  hf.WantOneOf("dense_act_fn", {config.gated_mlp ? "\"gelu_new\"" : "\"relu\""});
  hf.WantOneOf("is_gated_act", {config.gated_mlp ? "true" : "false"});
  const bool tied = hf.Boolean("tie_word_embeddings").value_or(true);
  const std::optional<bool> scales = hf.Boolean("scale_decoder_outputs");
  config.scale_decoder_outputs = scales.value_or(tied);
  if (!hf.HasTensor(kEmbedding)) {
    config.tie_word_embeddings = tied && scales.value_or(true);
  } else if (scales || !tied) {
    config.tie_word_embeddings = !hf.Differ("lm_head.weight", kEmbedding);
  } else {
    config.tie_word_embeddings = hf.TiesHead(tied, kEmbedding);
  }
  for (const char* copy : {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}) {
    if (hf.Differ(copy, kEmbedding)) {
      hf.Refuse(copy, std::string("is no copy of ") + kEmbedding +
                          ": stacks with embeddings of their own are not in this version");
    }
  }
  if (hf.HasTensor("decoder.final_layer_norm.weight") == std::optional(false)) {
    hf.Refuse("architectures",
              "the files beside it hold no decoder, as those of a T5EncoderModel: "
              "an encoder alone is not in this version");
  }
}

void WriteHf(const HfRelative<Config>&, const Config& config, JsonTree& json) {
  json["num_decoder_layers"] = config.num_decoder_layers;
  json["feed_forward_proj"] = config.gated_mlp ? "gated-gelu" : "relu";
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["scale_decoder_outputs"] = config.scale_decoder_outputs;
  json["is_encoder_decoder"] = true;
  json["pad_token_id"] = 0;
  json["decoder_start_token_id"] = 0;
}

DecoderShape TargetDecoder(const Config& c) {
  return {.vocab_size = c.vocab_size,
          .max_positions = kMaxPositions,
          .hidden_size = c.hidden_size,
          .num_layers = c.num_decoder_layers,
          .num_heads = c.num_attention_heads,
          .num_key_value_heads = c.num_attention_heads,
          .head_dim = c.head_dim,
          .widest_row = std::max(
              {c.hidden_size, 3 * c.inner_size(), (c.gated_mlp ? 2 : 1) * c.intermediate_size})};
}

}  // namespace

namespace t5 {

const ModelFamily& Family() {
  const Config standard_there{.dropout_rate = 0.1};
  static const TableFamily<T5Config> family(
      {.name = "t5",
       .rows = Rows(),
       .make = &MakeT5,
       .kin = {"t5-v1.1", "flan-t5"},
       .presets = Presets(),
       .fill_dependent = &FillDependent,
       .validate = &Validate,
       .shrink = &Shrink,
       .target_decoder = &TargetDecoder,
       .kept_fp32_in_fp16 = {"*.wo.weight"},  // As in transformers: _keep_in_fp32_modules.
       .target_length = &Config::target_length,
       .hf = {{"t5", "T5ForConditionalGeneration", standard_there}},
       // Copies of what is shared, and a table that old files hold and nobody reads.
       .hf_names = {"",
                    {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                     ".EncDecAttention.relative_attention_bias.weight"},
                    {kEmbedding, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}},
       .hf_features = {{"is_encoder_decoder", {"true"}},
                       {"is_decoder", {"false"}},
                       {"pad_token_id", {"0"}},
                       {"decoder_start_token_id", {"0"}}},
       .read_hf = &ReadHf,
       .write_hf = &WriteHf});
  return family;
}

}  // namespace t5

const ModelFamily& FamilyOfConfig(const T5Config&) { return t5::Family(); }

}  // namespace fsdp
