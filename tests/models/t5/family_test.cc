#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "models/shape.h"
#include "models/t5/config.h"
#include "trainer/nn/model.h"
#include "trainer/ops/attention_inputs.h"

namespace fsdp {
namespace {

// The element counts of the published files, and those that the authors' benchmark of FSDP prints.
TEST(T5Family, PresetsHaveThePublishedNumbersOfParameters) {
  const std::map<std::string_view, int64_t> published = {
      {"t5-small", 60506624},       {"t5-base", 222903552},      {"t5-611m", 611838976},
      {"t5-large", 737668096},      {"t5-2.28b", 2280642560},    {"t5-3b", 2851598336},
      {"t5-11b", 11307321344},      {"t5-v1.1-small", 76961152}, {"t5-v1.1-base", 247577856},
      {"t5-v1.1-large", 783150080}, {"t5-v1.1-xl", 2849757184},  {"t5-v1.1-xxl", 11135332352},
  };
  std::map<std::string_view, int64_t> ours;
  for (const ModelPreset& preset : FindFamily("t5")->presets()) {
    EXPECT_TRUE(ours.emplace(preset.name, NumParameters(preset.shape)).second) << preset.name;
    EXPECT_TRUE(Validate(preset.shape).empty()) << preset.name;
  }
  EXPECT_EQ(ours, published);
}

TEST(T5Family, FieldsFollowOthers) {
  const auto given = [](const std::string& names) {
    return [names](std::string_view name) { return names.find(name) != std::string::npos; };
  };
  const T5Config preset = *FindModelPreset("t5-v1.1-small")->As<T5Config>();
  const auto filled = [&](T5Config config, const std::string& names) {
    ModelShape shape = config;
    shape.family().FillDependent(shape, given(names));
    return *shape.As<T5Config>();
  };
  EXPECT_EQ(filled(preset, "vocab_size"), preset);
  T5Config config = preset;
  config.hidden_size = 48;
  config.num_hidden_layers = 3;
  config.tie_word_embeddings = true;
  EXPECT_EQ(filled(config, "").num_decoder_layers, 8);
  const T5Config all = filled(config, "hidden_size num_hidden_layers tie_word_embeddings");
  EXPECT_EQ(all.intermediate_size, 192);
  EXPECT_EQ(all.num_decoder_layers, 3);
  EXPECT_TRUE(all.scale_decoder_outputs);
  const std::string and_followers =
      "hidden_size num_hidden_layers tie_word_embeddings intermediate_size num_decoder_layers "
      "scale_decoder_outputs";
  EXPECT_EQ(filled(config, and_followers), config);
}

TEST(T5Family, CountsEveryTensorOnce) {
  T5Config config{.hidden_size = 3,
                  .intermediate_size = 5,
                  .num_hidden_layers = 2,
                  .num_decoder_layers = 4,
                  .num_attention_heads = 2,
                  .head_dim = 7,
                  .vocab_size = 11,
                  .relative_attention_num_buckets = 6};
  const int64_t attention = 3 + 4 * 3 * 14, mlp = 3 + 2 * 3 * 5;
  const int64_t all = 11 * 3 + 2 * (6 * 2 + 3) + 6 * attention + 6 * mlp + 4 * attention;
  EXPECT_EQ(NumParameters(config), all);
  config.gated_mlp = true;
  EXPECT_EQ(NumParameters(config), all + 6 * 3 * 5);
  config.tie_word_embeddings = false;
  EXPECT_EQ(NumParameters(config), all + 6 * 3 * 5 + 11 * 3);
}

// A block is a unit of its own; what several segments read is listed once.
TEST(T5Family, SharedParametersAreTheRoots) {
  T5Config config{.hidden_size = 4, .num_hidden_layers = 2, .vocab_size = 9};
  for (const bool tied : {true, false}) {
    config.tie_word_embeddings = tied;
    const std::shared_ptr<Model> model = MakeModel(config);
    std::set<std::string> root, read;
    int blocks = 0;
    for (const ModelSegment& segment : model->segments()) {
      blocks += segment.is_block ? 1 : 0;
      for (const Parameter* p : segment.reads) read.insert(p->name());
      if (segment.is_block || segment.own_unit) continue;
      for (const Parameter* p : segment.parameters) root.insert(p->name());
    }
    EXPECT_EQ(blocks, 4);
    const std::string table = ".block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    const std::set<std::string> shared = {"shared.weight", "encoder" + table, "decoder" + table};
    EXPECT_EQ(read, shared);
    std::set<std::string> want = shared;
    want.insert({"encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight"});
    if (!tied) want.insert("lm_head.weight");
    EXPECT_EQ(root, want);
  }
}

TEST(T5Family, TargetsMayHaveALengthOfTheirOwn) {
  T5Config config{.hidden_size = 4, .num_hidden_layers = 1, .vocab_size = 9};
  BatchSpec spec = MakeModel(config)->Inputs(12);
  EXPECT_EQ(spec.targets, 12);
  config.target_length = 5;
  spec = MakeModel(config)->Inputs(12);
  EXPECT_EQ(spec.targets, 5);
  for (const char* name : {"tokens", "order"}) {
    EXPECT_EQ(spec.inputs[spec.IndexOf(name)].sample, Shape{12}) << name;
  }
  for (const char* name :
       {"decoder_tokens", "targets", "weights", "decoder_order", "decoder_positions"}) {
    EXPECT_EQ(spec.inputs[spec.IndexOf(name)].sample, Shape{5}) << name;
  }
}

TEST(T5Family, LargestShapeDoesNotOverflow) {
  const T5Config config{.hidden_size = kMaxHiddenSize,
                        .intermediate_size = kMaxIntermediateSize,
                        .num_hidden_layers = kMaxHiddenLayers,
                        .num_attention_heads = kMaxHeads,
                        .head_dim = kMaxHeadDim,
                        .vocab_size = kMaxVocabSize,
                        .gated_mlp = true,
                        .tie_word_embeddings = false};
  EXPECT_TRUE(Validate(config).empty());
  const double h = kMaxHiddenSize, inner = kMaxHeads * kMaxHeadDim;
  const double matrices = kMaxHiddenLayers * h * (12 * inner + 6.0 * kMaxIntermediateSize);
  ASSERT_LT(matrices * 1.001, static_cast<double>(std::numeric_limits<int64_t>::max()));
  EXPECT_GT(static_cast<double>(NumParameters(config)), matrices);
}

TEST(T5Family, NamesEveryMistake) {
  T5Config config{.relative_attention_num_buckets = 32, .relative_attention_max_distance = 16};
  ASSERT_EQ(Validate(config).size(), 1u);
  EXPECT_EQ(Validate(config)[0].field, "relative_attention_max_distance");
  EXPECT_EQ(Validate(config)[0].message,
            "16 is not above half of relative_attention_num_buckets, 32");
  config.relative_attention_max_distance = 17;
  EXPECT_TRUE(Validate(config).empty());
  config = {.hidden_size = 0,
            .intermediate_size = 0,
            .num_hidden_layers = 0,
            .num_decoder_layers = kMaxHiddenLayers + 1,
            .num_attention_heads = 0,
            .head_dim = kMaxHeadDim + 1,
            .vocab_size = 0,
            .relative_attention_num_buckets = 3,
            .relative_attention_max_distance = 0,
            .rms_norm_eps = -1,
            .initializer_factor = -1};
  std::string fields;
  for (const ShapeMistake& mistake : Validate(config)) fields += mistake.field + " ";
  EXPECT_EQ(fields,
            "hidden_size intermediate_size num_hidden_layers num_decoder_layers "
            "num_attention_heads head_dim vocab_size relative_attention_num_buckets "
            "relative_attention_max_distance rms_norm_eps initializer_factor ");
}

}  // namespace
}  // namespace fsdp
