// RegNet as a family: its fields, published sizes, and config.json.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/regnet/config.h"
#include "models/table_family.h"

namespace fsdp {
namespace {

using Config = RegNetConfig;

constexpr int64_t kMaxImageSize = int64_t{1} << 14;
constexpr int64_t kMaxChannels = int64_t{1} << 10;
constexpr size_t kMaxStages = 16;

std::vector<FieldRow<Config>> Rows() {
  return {
      FreeRow("image_size", &Config::image_size, IntegerRange{1, kMaxImageSize},
              "Pixels of a side of the image", "224", {"img_size"}, "image_size"),
      Row("num_channels", &Config::num_channels, IntegerRange{1, kMaxChannels},
          "Channels of a pixel", "3", {"in_chans", "channels"}, "num_channels"),
      Row("num_labels", &Config::num_labels, IntegerRange{1, kMaxVocabSize}, "Classes", "1000",
          {"num_classes"}),
      Row("embedding_size", &Config::embedding_size, IntegerRange{1, kMaxHiddenSize},
          "Channels of the stem, a convolution before the stages", "32", {"stem_width"},
          "embedding_size"),
      Row("hidden_sizes", &Config::hidden_sizes, IntegerRange{1, kMaxHiddenSize},
          "Channels of each stage's blocks", "[48, 104, 208, 440]", {"widths"}, "hidden_sizes"),
      Row("depths", &Config::depths, IntegerRange{1, kMaxHiddenLayers},
          "Blocks of each stage; the first one halves the image's sides", "[1, 3, 6, 6]", {},
          "depths"),
      Row("groups_width", &Config::groups_width, IntegerRange{1, kMaxHiddenSize},
          "Channels of a group in the 3 x 3 convolutions", "8", {"group_width", "group_size"},
          "groups_width"),
      Row("squeeze_excitation", &Config::squeeze_excitation, BooleanRange(),
          "Squeeze and excitation in blocks. true: a RegNetY. false: a RegNetX", "true"),
      Row("downsample_in_first_stage", &Config::downsample_in_first_stage, BooleanRange(),
          "Whether the first stage halves the image's sides as well", "true", {},
          "downsample_in_first_stage"),
  };
}

// The sizes of the paper's figure 22 and of SEER (Goyal et al. 2022, arXiv:2202.08360), as Hugging
// Face has them: regnet-y-004, -160 and -1280; and the 9 billion of the FSDP paper's figure 6b.
std::vector<std::pair<std::string_view, Config>> Presets() {
  const auto size = [](std::vector<int64_t> depths, std::vector<int64_t> widths, int64_t group) {
    return Config{
        .hidden_sizes = std::move(widths), .depths = std::move(depths), .groups_width = group};
  };
  return {{"regnet-y-400mf", Config()},
          {"regnet-y-16gf", size({2, 4, 11, 1}, {224, 448, 1232, 3024}, 112)},
          {"regnet-y-128gf", size({2, 7, 17, 1}, {528, 1056, 2904, 7392}, 264)},
          {"regnet-9b", size({2, 7, 17, 1}, {2020, 4040, 11110, 28280}, 1010)}};
}

void Validate(const Config& c, ShapeChecks& checks) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  const auto stages = std::ssize(c.hidden_sizes);
  if (c.hidden_sizes.empty() || c.hidden_sizes.size() > kMaxStages) {
    checks.Add("hidden_sizes", text(stages) + " stages, want 1 to " + text(kMaxStages));
  }
  if (c.depths.size() != c.hidden_sizes.size()) {
    checks.Add(
        "depths",
        text(std::ssize(c.depths)) + " depths, for " + text(stages) + " stages of hidden_sizes",
        {"hidden_sizes"});
  }
  if (!checks.AreGood({"hidden_sizes"})) return;
  for (size_t stage = 0; stage < c.hidden_sizes.size(); ++stage) {
    const int64_t width = c.hidden_sizes[stage];
    if (checks.AreGood({"groups_width"}) && width % c.Groups(stage) != 0) {
      checks.Add("groups_width",
                 text(c.groups_width) + " makes " + text(c.Groups(stage)) +
                     " groups of hidden_sizes' " + text(width) +
                     " channels, which they do not divide",
                 {"hidden_sizes"});
    }
    const int64_t fewest = std::min(c.InputOf(stage), width);
    if (c.squeeze_excitation && Config::Squeezed(fewest) == 0 &&
        checks.AreGood({"embedding_size", "squeeze_excitation"})) {
      checks.Add("squeeze_excitation",
                 "a quarter of " + text(fewest) +
                     " channels is no channel: want more of them, or no squeeze_excitation",
                 {"hidden_sizes", "embedding_size"});
    }
  }
}

// The same blocks keep a convolution beside them.
void Shrink(Config& c) {
  const bool even = !c.hidden_sizes.empty() && c.embedding_size == c.hidden_sizes[0];
  const size_t stages = std::clamp<size_t>(c.hidden_sizes.size(), 1, kMaxStages);
  c.image_size = 1, c.num_channels = 1, c.num_labels = 1, c.groups_width = 1;
  c.embedding_size = even ? 4 : 5;
  c.hidden_sizes.assign(stages, 4);
  c.depths.resize(stages, 1);
  for (int64_t& depth : c.depths) depth = std::clamp<int64_t>(depth, 1, kMaxHiddenLayers);
}

// transformers assumes two labels where a file has none.
void ReadHf(const HfRelative<Config>&, HfObject& hf, Config& c) {
  const auto labels = hf.Find("id2label");
  hf.Find("label2id");
  c.num_labels = hf.Integer("num_labels").value_or(2);
  if (labels) {
    if (!labels->IsObject()) labels->Refuse("is not an object");
    c.num_labels = std::ssize(labels->Members());
  }
  c.squeeze_excitation = true;
  if (const auto type = hf.Find("layer_type")) {
    const std::string name = type->Text();
    if (name != "x" && name != "y") type->Refuse("is `" + name + "`, want `x` or `y`");
    c.squeeze_excitation = name == "y";
  }
}

void WriteHf(const HfRelative<Config>&, const Config& c, JsonTree& json) {
  json["layer_type"] = c.squeeze_excitation ? "y" : "x";
  json["hidden_act"] = "relu";
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

namespace regnet {

const ModelFamily& Family() {
  // transformers' own defaults: those of RegNetY-040.
  const Config standard{
      .hidden_sizes = {128, 192, 512, 1088}, .depths = {2, 6, 12, 2}, .groups_width = 64};
  static const TableFamily<RegNetConfig> family(
      {.name = "regnet",
       .rows = Rows(),
       .make = &MakeRegNet,
       .presets = Presets(),
       .validate = &Validate,
       .shrink = &Shrink,
       .head = {"num_labels", {"classifier.1.weight", "classifier.1.bias"}},
       .hf = {{"regnet", "RegNetForImageClassification", standard}},
       .hf_names = {"regnet.", {}},
       .hf_features = {{"hidden_act", {"\"relu\""}},
                       {"problem_type", {"\"single_label_classification\""}}},
       .read_hf = &ReadHf,
       .write_hf = &WriteHf});
  return family;
}

}  // namespace regnet

const ModelFamily& FamilyOfConfig(const RegNetConfig&) { return regnet::Family(); }

}  // namespace fsdp
