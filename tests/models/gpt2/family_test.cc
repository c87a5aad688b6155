#include <gtest/gtest.h>

#include <limits>

#include "models/gpt2/config.h"
#include "models/shape.h"
#include "trainer/ops/attention_inputs.h"

namespace fsdp {
namespace {

// The element counts of the published files gpt2, gpt2-medium, gpt2-large and gpt2-xl.
TEST(Gpt2Family, PresetsHaveThePublishedNumbersOfParameters) {
  const auto count = [](const char* name) { return NumParameters(*FindModelPreset(name)); };
  EXPECT_EQ(count("gpt2-124m"), 124439808);
  EXPECT_EQ(count("gpt2-350m"), 354823168);
  EXPECT_EQ(count("gpt2-774m"), 774030080);
  EXPECT_EQ(count("gpt2-1.5b"), 1557611200);
  EXPECT_EQ(count("mingpt-175b"), 175215501312);  // As its authors' benchmark prints it.
  for (const ModelPreset& preset : FindFamily("gpt2")->presets()) {
    EXPECT_TRUE(Validate(preset.shape).empty()) << preset.name;
    const bool largest = preset.name == "mingpt-175b";
    EXPECT_EQ(DecoderOf(preset.shape).head_dim, largest ? 128 : 64) << preset.name;
  }
}

TEST(Gpt2Family, IntermediateSizeFollowsHiddenSize) {
  EXPECT_EQ(Gpt2Config{.hidden_size = 24}.intermediate_size, 96);
  EXPECT_EQ((Gpt2Config{.hidden_size = 24, .intermediate_size = 50}.intermediate_size), 50);
}

TEST(Gpt2Family, CountsEveryTensorOnce) {
  const Gpt2Config config{.hidden_size = 3,
                          .intermediate_size = 5,
                          .num_hidden_layers = 2,
                          .num_attention_heads = 3,
                          .vocab_size = 7,
                          .max_position_embeddings = 4};
  const int64_t block = 2 * 3 + (9 * 3 + 9) + (3 * 3 + 3) + 2 * 3 + (3 * 5 + 5) + (5 * 3 + 3);
  EXPECT_EQ(NumParameters(config), 7 * 3 + 4 * 3 + 2 * block + 2 * 3);
  Gpt2Config untied = config;
  untied.tie_word_embeddings = false;
  EXPECT_EQ(NumParameters(untied), NumParameters(config) + 7 * 3);
}

TEST(Gpt2Family, LargestShapeDoesNotOverflow) {
  const Gpt2Config config{.hidden_size = kMaxHiddenSize,
                          .intermediate_size = kMaxIntermediateSize,
                          .num_hidden_layers = kMaxHiddenLayers,
                          .num_attention_heads = kMaxHiddenSize / kMaxHeadDim,
                          .vocab_size = kMaxVocabSize,
                          .max_position_embeddings = kMaxPositions};
  EXPECT_TRUE(Validate(config).empty());
  const double h = kMaxHiddenSize;
  const double matrices = kMaxHiddenLayers * (4 * h * h + 2 * h * kMaxIntermediateSize);
  ASSERT_LT(matrices * 1.001, static_cast<double>(std::numeric_limits<int64_t>::max()));
  EXPECT_GT(static_cast<double>(NumParameters(config)), matrices);
}

TEST(Gpt2Family, HeadsAreNoWiderThanAttentionComputes) {
  Gpt2Config config{.hidden_size = 2 * kMaxHeadDim, .num_attention_heads = 2};
  EXPECT_TRUE(Validate(config).empty());
  config.num_attention_heads = 1;
  ASSERT_EQ(Validate(config).size(), 1u);
  EXPECT_EQ(Validate(config)[0].field, "num_attention_heads");
}

TEST(Gpt2Family, NamesEveryMistake) {
  Gpt2Config config{.hidden_size = 100, .num_attention_heads = 3};
  ASSERT_EQ(Validate(config).size(), 1u);
  EXPECT_EQ(Validate(config)[0].field, "num_attention_heads");
  EXPECT_EQ(Validate(config)[0].message, "3 heads do not divide hidden_size 100");
  config = {.hidden_size = 0,
            .intermediate_size = 0,
            .num_hidden_layers = -1,
            .num_attention_heads = 0,
            .vocab_size = kMaxVocabSize + 1,
            .max_position_embeddings = 0,
            .layer_norm_epsilon = -1,
            .initializer_range = -1};
  std::string fields;
  for (const ShapeMistake& mistake : Validate(config)) fields += mistake.field + " ";
  EXPECT_EQ(fields,
            "hidden_size intermediate_size num_hidden_layers num_attention_heads vocab_size "
            "max_position_embeddings layer_norm_epsilon initializer_range ");
}

}  // namespace
}  // namespace fsdp
