#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>

#include "models/llama/config.h"
#include "models/shape.h"
#include "trainer/ops/attention_inputs.h"

namespace fsdp {
namespace {

// The element counts of the published files.
TEST(LlamaFamily, PresetsHaveThePublishedNumbersOfParameters) {
  const std::map<std::string_view, int64_t> published = {
      {"llama2-7b", 6738415616},     {"llama2-13b", 13015864320},
      {"llama2-70b", 68976648192},   {"llama3-8b", 8030261248},
      {"llama3-70b", 70553706496},   {"llama3.1-8b", 8030261248},
      {"llama3.1-70b", 70553706496}, {"llama3.1-405b", 405853388800},
      {"llama3.2-1b", 1235814400},   {"llama3.2-3b", 3212749824},
      {"qwen2.5-0.5b", 494032768},   {"qwen2.5-1.5b", 1543714304},
      {"qwen2.5-3b", 3085938688},    {"qwen2.5-7b", 7615616512},
      {"qwen2.5-14b", 14770033664},  {"qwen2.5-32b", 32763876352},
      {"qwen2.5-72b", 72706203648},  {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},    {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},      {"qwen3-14b", 14768307200},
      {"qwen3-32b", 32762123264},    {"mistral-7b-v0.3", 7248023552},
  };
  std::map<std::string_view, int64_t> ours;
  for (const ModelPreset& preset : FindFamily("llama")->presets()) {
    EXPECT_TRUE(ours.emplace(preset.name, NumParameters(preset.shape)).second) << preset.name;
    EXPECT_TRUE(Validate(preset.shape).empty()) << preset.name;
  }
  EXPECT_EQ(ours, published);
}

TEST(LlamaFamily, FieldsFollowOthers) {
  const LlamaConfig small{.hidden_size = 96, .num_attention_heads = 6};
  EXPECT_EQ(small.intermediate_size, 256);
  EXPECT_EQ(small.num_key_value_heads, 6);
  EXPECT_EQ(small.head_dim, 16);
  EXPECT_EQ(LlamaConfig{}.intermediate_size, 11008);
  EXPECT_EQ(LlamaConfig::IntermediateSize(5120), 13824);

  const auto given = [](const std::string& names) {
    return [names](std::string_view name) { return names.find(name) != std::string::npos; };
  };
  // 4096, 14336, 32 heads of 128, 8 groups.
  const LlamaConfig preset = *FindModelPreset("llama3-8b")->As<LlamaConfig>();
  LlamaConfig config = preset;
  const auto fill = [&](const std::string& names) {
    ModelShape shape = config;
    shape.family().FillDependent(shape, given(names));
    config = *shape.As<LlamaConfig>();
  };
  fill("vocab_size");
  EXPECT_EQ(config, preset);
  config.hidden_size = 1024;
  fill("hidden_size");
  EXPECT_EQ(config.intermediate_size, 2816);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.num_key_value_heads, 8);
  config.num_attention_heads = 16;
  fill("hidden_size num_attention_heads intermediate_size");
  EXPECT_EQ(config.intermediate_size, 2816);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_key_value_heads, 16);
}

TEST(LlamaFamily, CountsEveryTensorOnce) {
  LlamaConfig config{.hidden_size = 3,
                     .intermediate_size = 5,
                     .num_hidden_layers = 2,
                     .num_attention_heads = 4,
                     .num_key_value_heads = 2,
                     .head_dim = 6,
                     .vocab_size = 7};
  const int64_t q = 4 * 6, kv = 2 * 6;
  const int64_t block = 3 + 3 + 3 * q + 2 * 3 * kv + q * 3 + 3 * 3 * 5;
  EXPECT_EQ(NumParameters(config), 2 * 7 * 3 + 2 * block + 3);
  config.tie_word_embeddings = true;
  EXPECT_EQ(NumParameters(config), 7 * 3 + 2 * block + 3);
  config.attention_bias = true;
  EXPECT_EQ(NumParameters(config), 7 * 3 + 2 * (block + q + 2 * kv) + 3);
  config.attention_output_bias = true;
  EXPECT_EQ(NumParameters(config), 7 * 3 + 2 * (block + q + 2 * kv + 3) + 3);
  config.mlp_bias = true;
  EXPECT_EQ(NumParameters(config), 7 * 3 + 2 * (block + q + 2 * kv + 3 + 5 + 5 + 3) + 3);
  config.qk_norm = true;
  EXPECT_EQ(NumParameters(config), 7 * 3 + 2 * (block + q + 2 * kv + 3 + 5 + 5 + 3 + 12) + 3);
}

TEST(LlamaFamily, LargestShapeDoesNotOverflow) {
  const LlamaConfig config{.hidden_size = kMaxHiddenSize,
                           .intermediate_size = kMaxIntermediateSize,
                           .num_hidden_layers = kMaxHiddenLayers,
                           .num_attention_heads = kMaxHeads,
                           .num_key_value_heads = kMaxHeads,
                           .head_dim = kMaxHeadDim,
                           .vocab_size = kMaxVocabSize,
                           .max_position_embeddings = kMaxPositions};
  EXPECT_TRUE(Validate(config).empty());
  const double h = kMaxHiddenSize, q = static_cast<double>(config.query_size());
  const double matrices = kMaxHiddenLayers * (4 * h * q + 3 * h * kMaxIntermediateSize);
  ASSERT_LT(matrices * 1.001, static_cast<double>(std::numeric_limits<int64_t>::max()));
  EXPECT_GT(static_cast<double>(NumParameters(config)), matrices);
}

std::string Fields(const LlamaConfig& config) {
  std::string fields;
  for (const ShapeMistake& mistake : Validate(config)) fields += mistake.field + " ";
  return fields;
}

TEST(LlamaFamily, NamesEveryMistake) {
  EXPECT_EQ(Fields({.hidden_size = 0,
                    .intermediate_size = 0,
                    .num_hidden_layers = -1,
                    .num_attention_heads = 0,
                    .num_key_value_heads = 0,
                    .head_dim = 257,
                    .vocab_size = kMaxVocabSize + 1,
                    .max_position_embeddings = 0,
                    .rms_norm_eps = -1,
                    .rope_theta = 1,
                    .initializer_range = -1}),
            "hidden_size intermediate_size num_hidden_layers num_attention_heads "
            "num_key_value_heads vocab_size max_position_embeddings rms_norm_eps rope_theta "
            "initializer_range head_dim ");
  EXPECT_EQ(Fields({.num_attention_heads = 6, .num_key_value_heads = 4, .head_dim = 5}),
            "num_key_value_heads head_dim ");
  EXPECT_EQ(
      Validate(LlamaConfig{.num_attention_heads = 6, .num_key_value_heads = 4, .head_dim = 8})[0]
          .message,
      "4 key and value heads do not divide 6 heads");
}

TEST(LlamaFamily, EveryScalingHasItsOwnFields) {
  using Type = RopeScaling::Type;
  const auto fields = [](const RopeScaling& scaling) {
    return Fields(LlamaConfig{.rope_scaling = scaling});
  };
  EXPECT_EQ(fields({}), "");
  EXPECT_EQ(fields({.factor = 2}), "rope_scaling.factor ");
  EXPECT_EQ(fields({.type = Type::kLinear}), "rope_scaling.factor ");
  EXPECT_EQ(fields({.type = Type::kLinear, .factor = 0.5}), "rope_scaling.factor ");
  EXPECT_EQ(fields({.type = Type::kLinear, .factor = 2, .beta_fast = 3}),
            "rope_scaling.beta_fast ");
  EXPECT_EQ(fields({.type = Type::kDynamic, .factor = 2}), "");
  EXPECT_EQ(fields({.type = Type::kLlama3, .factor = 2}),
            "rope_scaling.original_max_position_embeddings rope_scaling.low_freq_factor "
            "rope_scaling.high_freq_factor ");
  RopeScaling llama3{.type = Type::kLlama3,
                     .factor = 2,
                     .original_max_position_embeddings = 16,
                     .low_freq_factor = 1,
                     .high_freq_factor = 4};
  EXPECT_EQ(fields(llama3), "");
  llama3.high_freq_factor = 1;
  EXPECT_EQ(fields(llama3), "rope_scaling.high_freq_factor ");
  RopeScaling yarn{.type = Type::kYarn, .factor = 2, .original_max_position_embeddings = 16};
  EXPECT_EQ(fields(yarn), "");
  yarn.beta_slow = 33;
  EXPECT_EQ(fields(yarn), "rope_scaling.beta_fast ");
  yarn.truncate = false;
  yarn.beta_fast = 40;
  yarn.mscale = -1;
  yarn.low_freq_factor = 1;
  EXPECT_EQ(fields(yarn), "rope_scaling.low_freq_factor rope_scaling.mscale ");
}

TEST(LlamaFamily, OnlyDynamicScalingStretchesTheLongestSequence) {
  LlamaConfig config;
  EXPECT_EQ(config.max_positions(), 4096);
  config.rope_scaling = {.type = RopeScaling::Type::kLinear, .factor = 2.5};
  EXPECT_EQ(config.max_positions(), 4096);
  config.rope_scaling.type = RopeScaling::Type::kDynamic;
  EXPECT_EQ(config.max_positions(), 10240);
  config.rope_scaling.factor = 1e300;
  EXPECT_EQ(config.max_positions(), kMaxPositions);
}

}  // namespace
}  // namespace fsdp
