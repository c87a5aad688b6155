// GPT-2 as a family: its fields, published sizes, and config.json.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "models/gpt2/config.h"
#include "models/table_family.h"
#include "trainer/ops/norm.h"

namespace fsdp {
namespace {

using Config = Gpt2Config;

constexpr const char* kEmbedding = "wte.weight";

std::vector<FieldRow<Config>> Rows() {
  return {
      Row("hidden_size", &Config::hidden_size, IntegerRange{1, kMaxHiddenSize},
          "Width of the residual stream", "768", {"n_embd", "d_model", "hidden_dim"}, "n_embd"),
      Row("intermediate_size", &Config::intermediate_size, IntegerRange{1, kMaxIntermediateSize},
          "Width inside the MLP", "4 x hidden_size", {"n_inner", "d_ff", "ffn_dim"}),
      Row("num_hidden_layers", &Config::num_hidden_layers, IntegerRange{1, kMaxHiddenLayers},
          "Transformer blocks", "12", {"n_layer", "n_layers", "num_layers"}, "n_layer"),
      Row("num_attention_heads", &Config::num_attention_heads, IntegerRange{1, kMaxHiddenSize},
          "Attention heads; for gpt2 a divisor of hidden_size", "12",
          {"n_head", "n_heads", "num_heads"}, "n_head"),
      Row("vocab_size", &Config::vocab_size, IntegerRange{1, kMaxVocabSize},
          "Tokens of the vocabulary", "50257", {"n_vocab"}, "vocab_size"),
      Row("max_position_embeddings", &Config::max_position_embeddings,
          IntegerRange{1, kMaxPositions}, "Longest sequence, in tokens", "1024",
          {"n_positions", "n_ctx", "block_size"}, "n_positions"),
      Row("layer_norm_epsilon", &Config::layer_norm_epsilon,
          RealRange{.at_least = kMinLayerNormEps, .at_most = 1},
          "Added to the variance in every LayerNorm", "1e-5", {"layer_norm_eps", "norm_eps"},
          "layer_norm_epsilon"),
      Row("initializer_range", &Config::initializer_range, RealRange{.at_least = 0, .at_most = 1},
          "Standard deviation of the initial weights", "0.02", {"init_std"}, "initializer_range"),
      Row("tie_word_embeddings", &Config::tie_word_embeddings, BooleanRange(),
          "The head is the token embedding", "true"),
      DropoutRow("embedding_dropout", &Config::embedding_dropout,
                 "Share of the embeddings' elements that are dropped in training", {"embd_pdrop"},
                 "embd_pdrop"),
      DropoutRow(
          "residual_dropout", &Config::residual_dropout,
          "Share of the elements that attention and the MLP add to the residual stream that are "
          "dropped in training",
          {"resid_pdrop", "dropout"}, "resid_pdrop"),
      DropoutRow(
          "attention_dropout", &Config::attention_dropout,
          "Share of attention's probabilities that are dropped in training, after the softmax",
          {"attn_pdrop"}, "attn_pdrop"),
  };
}

// The four published sizes, under the names usual today, and the 175 billion of the FSDP paper's
// figure 7a, whose shape is that of github.com/lessw2020/transformer_framework. Parameters count a
// tied embedding once, as the published checkpoints hold it.
std::vector<std::pair<std::string_view, Config>> Presets() {
  const auto size = [](int64_t hidden, int64_t layers, int64_t heads) {
    return Config{.hidden_size = hidden, .num_hidden_layers = layers, .num_attention_heads = heads};
  };
  Config mingpt = size(12288, 96, 96);
  mingpt.vocab_size = 50000;
  mingpt.max_position_embeddings = 2048;
  mingpt.tie_word_embeddings = false;
  return {{"gpt2-124m", size(768, 12, 12)},
          {"gpt2-350m", size(1024, 24, 16)},
          {"gpt2-774m", size(1280, 36, 20)},
          {"gpt2-1.5b", size(1600, 48, 25)},
          {"mingpt-175b", mingpt}};
}

void FillDependent(Config& config, const ModelFamily::Given& given) {
  if (given("hidden_size") && !given("intermediate_size")) {
    config.intermediate_size = 4 * config.hidden_size;
  }
}

void Validate(const Config& c, ShapeChecks& checks) {
  if (!checks.AreGood({"hidden_size", "num_attention_heads"})) return;
  if (c.hidden_size % c.num_attention_heads != 0) {
    checks.Add("num_attention_heads",
               std::to_string(c.num_attention_heads) + " heads do not divide hidden_size " +
                   std::to_string(c.hidden_size),
               {"hidden_size"});
  } else {
    checks.HeadDim("num_attention_heads", c.head_dim(), {"hidden_size"});
  }
}

void Shrink(Config& c) {
  const Config whole = c;
  c = {.hidden_size = 1,
       .intermediate_size = 1,
       .num_hidden_layers = std::clamp<int64_t>(whole.num_hidden_layers, 1, kMaxHiddenLayers),
       .num_attention_heads = 1,
       .vocab_size = 1,
       .max_position_embeddings = 1,
       .initializer_range = 0,
       .tie_word_embeddings = whole.tie_word_embeddings};
}

DecoderShape Decoder(const Config& c) {
  return {.vocab_size = c.vocab_size,
          .max_positions = c.max_position_embeddings,
          .hidden_size = c.hidden_size,
          .num_layers = c.num_hidden_layers,
          .num_heads = c.num_attention_heads,
          .num_key_value_heads = c.num_attention_heads,
          .head_dim = c.head_dim(),
          .widest_row = std::max(3 * c.hidden_size, c.intermediate_size)};
}

void ReadHf(const HfRelative<Config>&, HfObject& hf, Config& config) {
  if (config.hidden_size < 1 || config.hidden_size > kMaxHiddenSize) {  // 4 times it must fit.
    hf.Refuse("n_embd", std::to_string(config.hidden_size) + " is not from 1 to " +
                            std::to_string(kMaxHiddenSize));
  }
  config.intermediate_size = hf.Integer("n_inner").value_or(4 * config.hidden_size);
  config.tie_word_embeddings =
      hf.TiesHead(hf.Boolean("tie_word_embeddings").value_or(true), kEmbedding);
}

void WriteHf(const HfRelative<Config>&, const Config& config, JsonTree& json) {
  json["activation_function"] = "gelu_new";
  json["n_inner"] = config.intermediate_size;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
}

FamilyTable<Config> Table() {
  // The standards of transformers' GPT2Config() are ours, but for these.
  const Config standard_there{
      .embedding_dropout = 0.1, .residual_dropout = 0.1, .attention_dropout = 0.1};
  return {.name = "gpt2",
          .rows = Rows(),
          .make = &MakeGpt2,
          .kin = {"gpt"},
          .presets = Presets(),
          .fill_dependent = &FillDependent,
          .validate = &Validate,
          .shrink = &Shrink,
          .decoder = &Decoder,
          .head = {"", {"lm_head.weight"}},
          .hf = {{"gpt2", "GPT2LMHeadModel", standard_there}},
          // Causal masks.
          .hf_names = {"transformer.", {".attn.bias", ".attn.masked_bias"}, {kEmbedding}},
          .hf_features = {{"activation_function", {"\"gelu_new\"", "\"gelu_pytorch_tanh\""}},
                          {"scale_attn_weights", {"true"}},
                          {"scale_attn_by_inverse_layer_idx", {"false"}},
                          {"reorder_and_upcast_attn", {"false"}}},
          .read_hf = &ReadHf,
          .write_hf = &WriteHf};
}

}  // namespace

namespace gpt2 {

const ModelFamily& Family() {
  static const TableFamily<Gpt2Config> family(Table());
  return family;
}

}  // namespace gpt2

const ModelFamily& FamilyOfConfig(const Gpt2Config&) { return gpt2::Family(); }

}  // namespace fsdp
