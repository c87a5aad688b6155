// ViT as a family: its fields, published sizes, and config.json.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/table_family.h"
#include "models/vit/config.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/head_mixing.h"
#include "trainer/ops/norm.h"

namespace fsdp {
namespace {

using Config = VitConfig;

constexpr int64_t kMaxImageSize = int64_t{1} << 14;
constexpr int64_t kMaxChannels = int64_t{1} << 10;
constexpr int64_t kMaxPatchElements = int64_t{1} << 24;

std::vector<FieldRow<Config>> Rows() {
  return {
      Row("image_size", &Config::image_size, IntegerRange{1, kMaxImageSize},
          "Pixels of a side of the image", "224", {"img_size"}, "image_size"),
      Row("patch_size", &Config::patch_size, IntegerRange{1, kMaxImageSize},
          "Pixels of a side of a patch: a divisor of image_size", "16", {}, "patch_size"),
      Row("num_channels", &Config::num_channels, IntegerRange{1, kMaxChannels},
          "Channels of a pixel", "3", {"in_chans", "channels"}, "num_channels"),
      Row("num_labels", &Config::num_labels, IntegerRange{1, kMaxVocabSize}, "Classes", "1000",
          {"num_classes"}),
      Row("hidden_size", &Config::hidden_size, IntegerRange{1, kMaxHiddenSize},
          "Width of the residual stream", "768", {"n_embd", "d_model", "hidden_dim"},
          "hidden_size"),
      Row("intermediate_size", &Config::intermediate_size, IntegerRange{1, kMaxIntermediateSize},
          "Width inside the MLP", "4 x hidden_size", {"n_inner", "d_ff", "ffn_dim"},
          "intermediate_size"),
      Row("num_hidden_layers", &Config::num_hidden_layers, IntegerRange{1, kMaxHiddenLayers},
          "Transformer blocks", "12", {"n_layer", "n_layers", "num_layers"}, "num_hidden_layers"),
      Row("num_attention_heads", &Config::num_attention_heads, IntegerRange{1, kMaxHeads},
          "Attention heads", "12", {"n_head", "n_heads", "num_heads"}, "num_attention_heads"),
      Row("head_dim", &Config::head_dim, IntegerRange{1, kMaxHeadDim}, "Width of a head",
          "hidden_size / num_attention_heads", {"d_kv", "head_size", "kv_channels"}),
      Row("qkv_bias", &Config::qkv_bias, BooleanRange(),
          "Biases of attention's q, k and v; DeepViT has none", "true (false with reattention)"),
      NameRow("reattention", &Config::reattention, {"none", "layer_norm"},
              "Re-attention, the change of attention's probabilities in DeepViT. layer_norm: a "
              "learned matrix mixes the heads, then they are normalised over heads, as in "
              "vit-pytorch's DeepViT",
              "none"),
      Row("layer_norm_epsilon", &Config::layer_norm_epsilon,
          RealRange{.at_least = kMinLayerNormEps, .at_most = 1},
          "Added to the variance in every LayerNorm", "1e-12 (1e-5 with reattention)",
          {"layer_norm_eps", "norm_eps"}),
      Row("initializer_range", &Config::initializer_range, RealRange{.at_least = 0, .at_most = 1},
          "Standard deviation of the initial weights", "0.02", {"init_std"}, "initializer_range"),
      DropoutRow(
          "hidden_dropout_prob", &Config::hidden_dropout_prob,
          "Share of the elements of embeddings, and of those that attention and the MLP add to "
          "the residual stream, that are dropped in training",
          {}, "hidden_dropout_prob"),
      DropoutRow(
          "attention_dropout", &Config::attention_dropout,
          "Share of attention's probabilities that are dropped in training, after the softmax",
          {"attn_pdrop"}),
  };
}

// The sizes of the paper's table 1, and the 8 billion of the FSDP paper's figure 6a, whose shape is
// that of github.com/lessw2020/transformer_framework.
std::vector<std::pair<std::string_view, Config>> Presets() {
  const auto size = [](int64_t patch, int64_t hidden, int64_t layers, int64_t heads) {
    return Config{.patch_size = patch,
                  .hidden_size = hidden,
                  .num_hidden_layers = layers,
                  .num_attention_heads = heads};
  };
  const Config deepvit{.image_size = 256,
                       .patch_size = 32,
                       .hidden_size = 1024,
                       .intermediate_size = 2048,
                       .num_hidden_layers = 952,
                       .num_attention_heads = 16,
                       .qkv_bias = false,
                       .reattention = Reattention::kLayerNorm,
                       .layer_norm_epsilon = 1e-5};
  return {{"vit-base", size(16, 768, 12, 12)},
          {"vit-large", size(16, 1024, 24, 16)},
          {"vit-huge", size(14, 1280, 32, 16)},
          {"deepvit-8b", deepvit}};
}

void FillDependent(Config& config, const ModelFamily::Given& given) {
  if (given("hidden_size") && !given("intermediate_size")) {
    config.intermediate_size = 4 * config.hidden_size;
  }
  const bool divides =
      config.num_attention_heads > 0 && config.hidden_size >= config.num_attention_heads;
  if ((given("hidden_size") || given("num_attention_heads")) && !given("head_dim") && divides) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  if (!given("reattention")) return;
  if (!given("qkv_bias")) config.qkv_bias = !config.mixes_heads();
  if (!given("layer_norm_epsilon")) config.layer_norm_epsilon = config.mixes_heads() ? 1e-5 : 1e-12;
}

void Validate(const Config& c, ShapeChecks& checks) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  if (checks.AreGood({"image_size", "patch_size"}) && c.image_size % c.patch_size != 0) {
    checks.Add("patch_size",
               text(c.patch_size) + " does not divide image_size " + text(c.image_size),
               {"image_size"});
  }
  if (checks.AreGood({"patch_size", "num_channels"}) && c.patch_elements() > kMaxPatchElements) {
    checks.Add("patch_size",
               "a patch has " + text(c.patch_elements()) + " elements, want at most " +
                   text(kMaxPatchElements),
               {"num_channels"});
  }
  if (c.mixes_heads()) {
    if (c.qkv_bias) {
      checks.Add("qkv_bias", "a DeepViT, which has reattention, has no such biases",
                 {"reattention"});
    }
    if (checks.AreGood({"num_attention_heads"}) && c.num_attention_heads > kMaxMixedHeads) {
      checks.Add("num_attention_heads",
                 text(c.num_attention_heads) + " heads, reattention mixes " + text(kMaxMixedHeads) +
                     " at most",
                 {"reattention"});
    }
    return;
  }
  if (!checks.AreGood({"hidden_size", "num_attention_heads", "head_dim"})) return;
  if (c.hidden_size % c.num_attention_heads != 0) {
    checks.Add(
        "num_attention_heads",
        text(c.num_attention_heads) + " heads do not divide hidden_size " + text(c.hidden_size),
        {"hidden_size"});
  } else if (c.inner_size() != c.hidden_size) {
    checks.Add("head_dim",
               text(c.num_attention_heads) + " heads of " + text(c.head_dim) +
                   " are not hidden_size " + text(c.hidden_size) +
                   ", as they are without reattention",
               {"num_attention_heads", "hidden_size"});
  }
}

void Shrink(Config& c) {
  const Config whole = c;
  c = {.image_size = 1,
       .patch_size = 1,
       .num_channels = 1,
       .num_labels = 1,
       .hidden_size = 1,
       .intermediate_size = 1,
       .num_hidden_layers = std::clamp<int64_t>(whole.num_hidden_layers, 1, kMaxHiddenLayers),
       .num_attention_heads = 1,
       .head_dim = 1,
       .qkv_bias = whole.qkv_bias && !whole.mixes_heads(),
       .reattention = whole.reattention,
       .initializer_range = 0,
       .branches_are_blocks = whole.branches_are_blocks};
}

bool IsDeep(const HfRelative<Config>& relative) { return relative.standard.mixes_heads(); }

// Keys that the two models do not share; those of a DeepViT are the recipe's.
struct Keys {
  explicit Keys(const HfRelative<Config>& relative) {
    if (!IsDeep(relative)) return;
    epsilon = "layer_norm_epsilon";
    attention_dropout = "attention_dropout";
  }
  const char* epsilon = "layer_norm_eps";
  const char* attention_dropout = "attention_probs_dropout_prob";
};

const HfRelative<Config>& RelativeOf(const std::vector<HfRelative<Config>>& relatives,
                                     const Config& c) {
  return relatives[c.mixes_heads() ? 1 : 0];
}

// Tensors of other heads than a classifier's, which has no part for them.
constexpr std::array<std::string_view, 3> kOfOtherHeads = {
    "pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token"};

void NoteLeftOut(HfObject& hf) {
  std::string out;
  for (const std::string_view name : kOfOtherHeads) {
    if (!hf.HasTensor(std::string(name)).value_or(false)) continue;
    out.append(out.empty() ? "" : ", ").append(name);
  }
  if (!out.empty()) hf.Note("left out, because a classifier has none: " + out);
}

// transformers assumes two labels where a file has none.
void ReadHf(const HfRelative<Config>& relative, HfObject& hf, Config& c) {
  const Keys keys(relative);
  NoteLeftOut(hf);
  c.layer_norm_epsilon = hf.Real(keys.epsilon).value_or(c.layer_norm_epsilon);
  c.attention_dropout = hf.Real(keys.attention_dropout).value_or(0);
  c.qkv_bias = hf.Boolean("qkv_bias").value_or(c.qkv_bias);
  const auto labels = hf.Find("id2label");
  hf.Find("label2id");
  c.num_labels = hf.Integer("num_labels").value_or(2);
  if (labels) {
    if (!labels->IsObject()) labels->Refuse("is not an object");
    c.num_labels = std::ssize(labels->Members());
  }
  const bool divides = c.num_attention_heads > 0 && c.hidden_size >= c.num_attention_heads;
  if (divides) c.head_dim = c.hidden_size / c.num_attention_heads;
  if (!IsDeep(relative)) return;
  c.head_dim = hf.Integer("head_dim").value_or(c.head_dim);
  hf.WantOneOf("reattention", {"\"layer_norm\""});
}

void WriteHf(const HfRelative<Config>& relative, const Config& c, JsonTree& json) {
  const Keys keys(relative);
  json[keys.epsilon] = c.layer_norm_epsilon;
  json[keys.attention_dropout] = c.attention_dropout;
  json["qkv_bias"] = c.qkv_bias;
  if (IsDeep(relative)) {
    json["num_labels"] = c.num_labels;
    json["head_dim"] = c.head_dim;
    json["reattention"] = "layer_norm";
    return;
  }
  json["hidden_act"] = "gelu";
  JsonTree names = JsonTree::Object(), ids = names;
  for (int64_t label = 0; label < c.num_labels; ++label) {
    const std::string name = "LABEL_" + std::to_string(label);
    names[std::to_string(label)] = name;
    ids[name] = label;
  }
  json["id2label"] = std::move(names);
  json["label2id"] = std::move(ids);
}

}  // namespace

namespace vit {

const ModelFamily& Family() {
  const Config deep{
      .qkv_bias = false, .reattention = Reattention::kLayerNorm, .layer_norm_epsilon = 1e-5};
  static const TableFamily<VitConfig> family(
      {.name = "vit",
       .rows = Rows(),
       .make = &MakeVit,
       .kin = {"deepvit"},
       .presets = Presets(),
       .fill_dependent = &FillDependent,
       .validate = &Validate,
       .shrink = &Shrink,
       .branches_are_blocks = &Config::branches_are_blocks,
       .head = {"num_labels",
                {"classifier.weight", "classifier.bias", "mlp_head.1.weight", "mlp_head.1.bias"}},
       .hf = {{"vit", "ViTForImageClassification", Config()}, {"deepvit", "DeepViT", deep}},
       .hf_names = {"vit.", {kOfOtherHeads.begin(), kOfOtherHeads.end()}},
       .hf_features = {{"hidden_act", {"\"gelu\""}},
                       {"problem_type", {"\"single_label_classification\""}}},
       .read_hf = &ReadHf,
       .write_hf = &WriteHf,
       .relative_of = &RelativeOf});
  return family;
}

}  // namespace vit

const ModelFamily& FamilyOfConfig(const VitConfig&) { return vit::Family(); }

}  // namespace fsdp
