#include "models/shape.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "models/family.h"
#include "models/llama/config.h"
#include "tests/testing/error_of.h"
#include "tests/testing/json.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

TEST(ModelShape, AsksTheFamily) {
  const ModelShape gpt2 = *FindModelPreset("gpt2-124m"), llama = *FindModelPreset("llama3.2-1b");
  EXPECT_EQ(FamilyOf(gpt2), "gpt2");
  EXPECT_EQ(FamilyOf(llama), "llama");
  EXPECT_EQ(NumParameters(gpt2), 124439808);
  EXPECT_EQ(NumParameters(llama), 1235814400);
  EXPECT_EQ(VocabSize(llama), 128256);
  EXPECT_EQ(DecoderOf(llama).hidden_size, 2048);
  EXPECT_EQ(DecoderOf(llama).num_layers, 16);
  EXPECT_EQ(DecoderOf(llama).num_heads, 32);
  EXPECT_EQ(DecoderOf(llama).num_key_value_heads, 8);
  EXPECT_EQ(MaxPositions(gpt2), 1024);
  EXPECT_EQ(MaxPositions(llama), 131072);
  EXPECT_EQ(FindModelPreset("gpt2"), nullptr);
  EXPECT_EQ(DefaultShape("bert"), std::nullopt);
  for (const ModelFamily* family : Families()) {
    EXPECT_EQ(FindFamily(family->name()), family);
    EXPECT_EQ(FamilyOf(*DefaultShape(family->name())), family->name());
    EXPECT_TRUE(Validate(*DefaultShape(family->name())).empty());
  }
}

TEST(ModelShape, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const ModelPreset& preset : ModelPresets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
  }
  EXPECT_GT(names.size(), 20u);
}

std::string ErrorOf(const std::string& text) {
  return testing::ErrorOf([&] { ShapeFromJson(text, "where"); });
}

TEST(ShapeJson, ReadsWhatItWrites) {
  for (const ModelPreset& preset : ModelPresets()) {
    EXPECT_EQ(ShapeFromJson(ShapeToJson(preset.shape), "where"), preset.shape) << preset.name;
  }
  LlamaConfig odd;
  odd.rope_scaling = {.type = RopeScaling::Type::kYarn,
                      .factor = 4.5,
                      .original_max_position_embeddings = 100,
                      .beta_fast = 31,
                      .beta_slow = 2,
                      .attention_factor = 1.25,
                      .mscale = 0.7,
                      .mscale_all_dim = 0.8,
                      .truncate = false};
  odd.attention_output_bias = odd.mlp_bias = true;
  odd.initializer_range = 1.0 / 3;
  EXPECT_EQ(ShapeFromJson(ShapeToJson(odd), "where"), ModelShape(odd));
}

TEST(ShapeJson, RefusesWhatIsNoShape) {
  const std::string good = ShapeToJson(*FindModelPreset("llama3.1-8b"));
  EXPECT_EQ(ErrorOf(good), "");
  EXPECT_EQ(ErrorOf("{"), "where:1:2: want a key in double quotes, got the end of the text");
  EXPECT_EQ(ErrorOf("[]"), "where: has no family");
  const auto changed = [&](const char* key, const testing::Json& value) {
    auto json = testing::Json::parse(good);
    json[key] = value;
    return ErrorOf(json.dump());
  };
  EXPECT_EQ(changed("family", "bert"),
            "where: family: is none that this version knows, got \"bert\"");
  EXPECT_NE(changed("num_key_value_heads", 3).find("num_key_value_heads: 3 key and value heads"),
            std::string::npos);
  EXPECT_EQ(changed("hidden_size", "wide"), "where: hidden_size: want an integer");
  EXPECT_EQ(changed("rope_scaling", nullptr), "where: rope_scaling: has no type");
  EXPECT_EQ(changed("family", "gpt2"), "where: has no layer_norm_epsilon");
  auto json = testing::Json::parse(good);
  json["rope_scaling"]["type"] = "longrope";
  EXPECT_EQ(ErrorOf(json.dump()),
            "where: rope_scaling.type: is none that this version knows, got \"longrope\"");
  json["rope_scaling"].erase("type");
  EXPECT_EQ(ErrorOf(json.dump()), "where: rope_scaling: has no type");
  json = testing::Json::parse(good);
  json.erase("qk_norm");
  EXPECT_EQ(ErrorOf(json.dump()), "where: has no qk_norm");
}

}  // namespace
}  // namespace fsdp
