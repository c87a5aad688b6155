#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/regnet/config.h"
#include "models/shape.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

// Hugging Face's RegNetForImageClassification with 1,000 classes, counted by PyTorch; the last one
// is what the FSDP paper calls 9 billion.
TEST(RegNetFamily, PresetsHaveThePublishedNumbersOfParameters) {
  const std::map<std::string_view, int64_t> published = {{"regnet-y-400mf", 4344144},
                                                         {"regnet-y-16gf", 83590140},
                                                         {"regnet-y-128gf", 644812894},
                                                         {"regnet-9b", 9352215872}};
  std::map<std::string_view, int64_t> ours;
  for (const ModelPreset& preset : FindFamily("regnet")->presets()) {
    EXPECT_TRUE(ours.emplace(preset.name, NumParameters(preset.shape)).second) << preset.name;
    EXPECT_TRUE(Validate(preset.shape).empty()) << preset.name;
  }
  EXPECT_EQ(ours, published);
}

TEST(RegNetFamily, CountsEveryTensorOnce) {
  RegNetConfig config{.image_size = 8,
                      .num_channels = 2,
                      .num_labels = 5,
                      .embedding_size = 6,
                      .hidden_sizes = {6, 8},
                      .depths = {1, 2},
                      .groups_width = 3,
                      .squeeze_excitation = false,
                      .downsample_in_first_stage = false};
  const auto block = [](int64_t in, int64_t out, int64_t group, bool beside) {
    return in * out + out * group * 9 + out * out + 6 * out + (beside ? in * out + 2 * out : 0);
  };
  const int64_t ends = 2 * 9 * 6 + 2 * 6 + 5 * 8 + 5;
  EXPECT_EQ(NumParameters(config),
            ends + block(6, 6, 3, false) + block(6, 8, 4, true) + block(8, 8, 4, false));
  config.downsample_in_first_stage = true;
  EXPECT_EQ(NumParameters(config),
            ends + block(6, 6, 3, true) + block(6, 8, 4, true) + block(8, 8, 4, false));
  const int64_t before = NumParameters(config);
  config.squeeze_excitation = true;  // A quarter of 6 is 1.5, which is rounded to even.
  EXPECT_EQ(NumParameters(config),
            before + 2 * (6 * 2) + 2 + 6 + 2 * (8 * 2) + 2 + 8 + 2 * (8 * 2) + 2 + 8);
}

// 13 batch norms, each with three buffers; blocks are the blocks.
TEST(RegNetFamily, SegmentsSayWhatTheyHave) {
  const RegNetConfig config{.hidden_sizes = {8, 16}, .depths = {2, 1}, .groups_width = 8};
  const std::shared_ptr<Model> model = MakeModel(config);
  std::vector<int> norms;
  std::vector<bool> blocks;
  for (const ModelSegment& segment : model->segments()) {
    norms.push_back(segment.batch_norms);
    blocks.push_back(segment.is_block);
    EXPECT_EQ(std::ssize(segment.buffers), 3 * segment.batch_norms) << segment.name;
  }
  EXPECT_EQ(norms, (std::vector<int>{1, 4, 3, 4, 0}));
  EXPECT_EQ(blocks, (std::vector<bool>{false, true, true, true, false}));
}

TEST(RegNetFamily, KnowsItsLastImages) {
  RegNetConfig config;
  EXPECT_EQ(config.LastSide(), 7);
  config.image_size = 32;
  EXPECT_EQ(config.LastSide(), 1);
  config.image_size = 33;
  EXPECT_EQ(config.LastSide(), 2);
  config.downsample_in_first_stage = false;
  EXPECT_EQ(config.LastSide(), 3);
  EXPECT_EQ(MakeModel(config)->fewest_normed_pixels(), 9);
}

TEST(RegNetFamily, LargestShapeDoesNotOverflow) {
  const RegNetConfig config{.image_size = 1 << 14,
                            .num_channels = 1 << 10,
                            .num_labels = kMaxVocabSize,
                            .embedding_size = kMaxHiddenSize,
                            .hidden_sizes = std::vector<int64_t>(16, kMaxHiddenSize),
                            .depths = std::vector<int64_t>(16, 8),
                            .groups_width = kMaxHiddenSize};
  EXPECT_TRUE(Validate(config).empty());
  const double h = kMaxHiddenSize;
  EXPECT_GT(static_cast<double>(NumParameters(config)), 16 * 8 * h * h * 11);
}

TEST(RegNetFamily, NamesEveryMistake) {
  const auto mistakes = [](const RegNetConfig& config) {
    std::string all;
    for (const ShapeMistake& m : Validate(config)) all += m.field + ": " + m.message + "\n";
    return all;
  };
  EXPECT_EQ(mistakes({.depths = {1, 2}}), "depths: 2 depths, for 4 stages of hidden_sizes\n");
  EXPECT_EQ(mistakes({.hidden_sizes = {}, .depths = {}}), "hidden_sizes: 0 stages, want 1 to 16\n");
  EXPECT_EQ(mistakes({.hidden_sizes = {20}, .depths = {1}, .groups_width = 3}),
            "groups_width: 3 makes 6 groups of hidden_sizes' 20 channels, which they do not "
            "divide\n");
  EXPECT_EQ(mistakes({.hidden_sizes = {2, 8}, .depths = {1, 1}, .groups_width = 2}),
            "squeeze_excitation: a quarter of 2 channels is no channel: want more of them, or no "
            "squeeze_excitation\n");
  EXPECT_EQ(mistakes({.hidden_sizes = {2, 8},
                      .depths = {1, 1},
                      .groups_width = 2,
                      .squeeze_excitation = false}),
            "");
  const RegNetConfig wrong{.image_size = 0,
                           .num_channels = 0,
                           .num_labels = 0,
                           .embedding_size = 0,
                           .hidden_sizes = {0},
                           .depths = {0},
                           .groups_width = 0};
  std::string fields;
  for (const ShapeMistake& mistake : Validate(wrong)) fields += mistake.field + " ";
  EXPECT_NE(fields.find("image_size num_channels num_labels embedding_size"), std::string::npos)
      << fields;
  EXPECT_NE(fields.find("groups_width"), std::string::npos) << fields;
}

}  // namespace
}  // namespace fsdp
