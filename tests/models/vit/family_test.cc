#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/shape.h"
#include "models/vit/config.h"
#include "trainer/nn/model.h"
#include "trainer/ops/head_mixing.h"

namespace fsdp {
namespace {

// The element counts of the published files with 1,000 classes, and the one that the authors'
// benchmark of FSDP prints.
TEST(VitFamily, PresetsHaveThePublishedNumbersOfParameters) {
  const std::map<std::string_view, int64_t> published = {{"vit-base", 86567656},
                                                         {"vit-large", 304326632},
                                                         {"vit-huge", 632045800},
                                                         {"deepvit-8b", 7998269160}};
  std::map<std::string_view, int64_t> ours;
  for (const ModelPreset& preset : FindFamily("vit")->presets()) {
    EXPECT_TRUE(ours.emplace(preset.name, NumParameters(preset.shape)).second) << preset.name;
    EXPECT_TRUE(Validate(preset.shape).empty()) << preset.name;
  }
  EXPECT_EQ(ours, published);
}

TEST(VitFamily, FieldsFollowOthers) {
  const auto filled = [](VitConfig config, const std::vector<std::string_view>& given) {
    ModelShape shape = config;
    shape.family().FillDependent(shape, [&](std::string_view name) {
      return std::find(given.begin(), given.end(), name) != given.end();
    });
    return *shape.As<VitConfig>();
  };
  VitConfig config;
  EXPECT_EQ(filled(config, {"image_size"}), config);
  config.hidden_size = 96;
  config.num_attention_heads = 8;
  config.reattention = Reattention::kLayerNorm;
  const VitConfig all = filled(config, {"hidden_size", "num_attention_heads", "reattention"});
  EXPECT_EQ(all.intermediate_size, 384);
  EXPECT_EQ(all.head_dim, 12);
  EXPECT_FALSE(all.qkv_bias);
  EXPECT_EQ(all.layer_norm_epsilon, 1e-5);
  EXPECT_EQ(filled(config, {"hidden_size", "num_attention_heads", "reattention",
                            "intermediate_size", "head_dim", "qkv_bias", "layer_norm_epsilon"}),
            config);
  VitConfig back = *FindModelPreset("deepvit-8b")->As<VitConfig>();
  back.reattention = Reattention::kNone;
  back = filled(back, {"reattention"});
  EXPECT_TRUE(back.qkv_bias);
  EXPECT_EQ(back.layer_norm_epsilon, 1e-12);
}

TEST(VitFamily, CountsEveryTensorOnce) {
  VitConfig config{.image_size = 6,
                   .patch_size = 2,
                   .num_channels = 5,
                   .num_labels = 11,
                   .hidden_size = 8,
                   .intermediate_size = 13,
                   .num_hidden_layers = 3,
                   .num_attention_heads = 2,
                   .head_dim = 4};
  const int64_t ends = 8 + 10 * 8 + 8 * 20 + 8 + 2 * 8 + 11 * 8 + 11;
  const int64_t mlp = 2 * 8 + 8 * 13 + 13 + 13 * 8 + 8, attention = 2 * 8 + 4 * 8 * 8 + 8;
  EXPECT_EQ(NumParameters(config), ends + 3 * (mlp + attention + 3 * 8));
  config.qkv_bias = false;
  EXPECT_EQ(NumParameters(config), ends + 3 * (mlp + attention));
  config.reattention = Reattention::kLayerNorm;
  EXPECT_EQ(NumParameters(config), ends + 3 * (mlp + attention + 2 * 2 + 2 * 2));
  config.head_dim = 7;
  EXPECT_EQ(NumParameters(config), ends + 3 * (mlp + 2 * 8 + 4 * 8 * 14 + 8 + 2 * 2 + 2 * 2));
}

TEST(VitFamily, ABlockIsALayerOrABranch) {
  VitConfig config = *FindModelPreset("deepvit-8b")->As<VitConfig>();
  const auto blocks = [&] {
    int64_t n = 0;
    const std::shared_ptr<Model> model = MakeModel(config);
    for (const ModelSegment& segment : model->segments()) n += segment.is_block ? 1 : 0;
    return n;
  };
  EXPECT_EQ(blocks(), 952);
  config.branches_are_blocks = true;
  EXPECT_EQ(blocks(), 1904);
  EXPECT_EQ(NumParameters(config), 7998269160);
}

TEST(VitFamily, LargestShapeDoesNotOverflow) {
  const VitConfig config{.image_size = 1 << 14,
                         .patch_size = 1 << 7,
                         .num_channels = 1 << 10,
                         .num_labels = kMaxVocabSize,
                         .hidden_size = kMaxHiddenSize,
                         .intermediate_size = kMaxIntermediateSize,
                         .num_hidden_layers = kMaxHiddenLayers,
                         .num_attention_heads = 1 << 13,
                         .head_dim = 1 << 7};
  EXPECT_TRUE(Validate(config).empty());
  const double h = kMaxHiddenSize;
  const double matrices = kMaxHiddenLayers * h * (4 * h + 2.0 * kMaxIntermediateSize);
  ASSERT_LT(matrices * 1.001, static_cast<double>(std::numeric_limits<int64_t>::max()));
  EXPECT_GT(static_cast<double>(NumParameters(config)), matrices);
}

TEST(VitFamily, NamesEveryMistake) {
  const auto mistakes = [](const VitConfig& config) {
    std::string all;
    for (const ShapeMistake& m : Validate(config)) all += m.field + ": " + m.message + "\n";
    return all;
  };
  EXPECT_EQ(mistakes({.image_size = 225}), "patch_size: 16 does not divide image_size 225\n");
  EXPECT_EQ(mistakes({.patch_size = 32}), "");
  EXPECT_EQ(mistakes({.image_size = 16384, .patch_size = 16384}),
            "patch_size: a patch has 805306368 elements, want at most 16777216\n");
  EXPECT_EQ(mistakes({.num_attention_heads = 5}),
            "num_attention_heads: 5 heads do not divide hidden_size 768\n");
  EXPECT_EQ(mistakes({.head_dim = 32}),
            "head_dim: 12 heads of 32 are not hidden_size 768, as they are without reattention\n");
  VitConfig deep{.head_dim = 32, .reattention = Reattention::kLayerNorm};
  EXPECT_EQ(mistakes(deep), "qkv_bias: a DeepViT, which has reattention, has no such biases\n");
  deep.qkv_bias = false;
  EXPECT_EQ(mistakes(deep), "");
  deep.num_attention_heads = kMaxMixedHeads + 1;
  EXPECT_EQ(mistakes(deep), "num_attention_heads: 65 heads, reattention mixes 64 at most\n");
  const VitConfig wrong{.image_size = 0,
                        .patch_size = 0,
                        .num_channels = 0,
                        .num_labels = 0,
                        .hidden_size = 0,
                        .intermediate_size = 0,
                        .num_hidden_layers = 0,
                        .num_attention_heads = 0,
                        .head_dim = 0,
                        .layer_norm_epsilon = 0,
                        .initializer_range = -1};
  std::string fields;
  for (const ShapeMistake& mistake : Validate(wrong)) fields += mistake.field + " ";
  EXPECT_EQ(fields,
            "image_size patch_size num_channels num_labels hidden_size intermediate_size "
            "num_hidden_layers num_attention_heads head_dim layer_norm_epsilon initializer_range ");
}

}  // namespace
}  // namespace fsdp
