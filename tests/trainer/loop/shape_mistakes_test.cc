// Odd values of every field of every family: a recipe is good, or each of its mistakes has a place
// and hides no other.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/family.h"
#include "models/shape.h"
#include "tests/testing/everything.h"
#include "trainer/core/errors.h"
#include "trainer/loop/complete_recipe.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

// The lines of what is said about a recipe, as `config check` has them.
std::set<std::string> LinesOf(const std::string& model, const std::string& more = "") {
  const std::string text = "model: {" + model + "}\n" + more;
  std::set<std::string> lines;
  try {
    const Recipe recipe = ParseRecipe({{"r.yaml", text}}, {}, ModelMistakes, CompleteRecipe);
    EXPECT_NE(MakeModel(ShapeFor(recipe)), nullptr) << model;
  } catch (const ConfigError& error) {
    std::istringstream all(error.what());
    for (std::string line; std::getline(all, line);) lines.insert(line);
  } catch (const std::exception& error) {
    ADD_FAILURE() << model << ": " << error.what();
  }
  return lines;
}

constexpr char kData[] = "data: {train: {source: synthetic}, seq_len: 1}\n";
constexpr char kWrong[] =
    "data: {train: {source: synthetic, x: 1}, seq_len: 1}\ntrain: {steps: x}\n";

void ExpectPlaces(const std::string& model) {
  static const std::regex place("r\\.yaml:[0-9]+:[0-9]+: (model|data|train)[^ ]*: .+");
  const std::set<std::string> lines = LinesOf(model, kData), more = LinesOf(model, kWrong);
  for (const std::string& line : more) EXPECT_TRUE(std::regex_match(line, place)) << line;
  for (const std::string& line : lines) EXPECT_TRUE(more.contains(line)) << model << "\n" << line;
  EXPECT_EQ(more.size(), lines.size() + 2) << model;
}

const Strings kOdd = {"0", "-1", "1", "3", "2147483648", "9223372036854775807", "null"};

Strings OddValues(const Field& field) {
  Strings values = kOdd;
  values.insert(values.end(), {"x", "[]", "{}", ".nan", "1e308", "true"});
  for (const std::string& odd : kOdd) {
    if (field.is_list) values.insert(values.end(), {"[" + odd + "]", "[" + odd + ", 4, 4, 4]"});
    if (const auto* map = std::get_if<MapRange>(&field.range)) {
      const std::string& first = map->members[0].name;
      for (const std::string& name : std::get<NameRange>(map->members[0].range).names) {
        for (const FieldMember& member : map->members) {
          values.push_back("{" + first + ": " + name +
                           (member.name == first ? "" : ", " + member.name + ": " + odd) + "}");
        }
      }
    }
  }
  if (field.is_list) {  // As many as no family takes.
    values.push_back("[1");
    for (int i = 1; i < 5000; ++i) values.back() += ",1";
    values.back() += "]";
  }
  if (const auto* names = std::get_if<NameRange>(&field.range)) {
    values.insert(values.end(), names->names.begin(), names->names.end());
  }
  return values;
}

// A run takes one value in three of each field, here and below.
TEST(ShapeMistakes, OddValuesOfEveryFieldAreGoodOrHaveAPlace) {
  size_t i = 0;
  for (const ModelFamily* family : Families()) {
    const std::string named = "family: " + std::string(family->name());
    ExpectPlaces(named);
    for (const Field& field : family->fields()) {
      for (const std::string& value : OddValues(field)) {
        if (testing::OfAnotherPart(i++, 3)) continue;
        ExpectPlaces(named + ", " + field.name + ": " + value);
      }
    }
  }
}

// The preset of each family with the most rules among its fields.
TEST(ShapeMistakes, SoAreTheyBesideAPreset) {
  size_t i = 0;
  for (const ModelFamily* family : Families()) {
    const std::string named = "preset: " + std::string(family->presets().back().name);
    for (const Field& field : family->fields()) {
      ++i;  // Neighbours take other values.
      for (const std::string& value : {std::string("1"), std::string("3"), std::string("true")}) {
        if (testing::OfAnotherPart(i++, 3)) continue;
        ExpectPlaces(named + ", " + field.name + ": " +
                     (field.is_list ? "[" + value + "]" : value));
      }
    }
  }
}

TEST(ShapeMistakes, AllFieldsMayBeOddTogether) {
  for (const ModelFamily* family : Families()) {
    for (const std::string& odd : kOdd) {
      std::string all = "family: " + std::string(family->name());
      for (const Field& field : family->fields()) {
        if (std::holds_alternative<MapRange>(field.range)) continue;
        all += ", " + field.name + ": " + (field.is_list ? "[" + odd + "]" : odd);
      }
      ExpectPlaces(all);
    }
  }
}

std::string SaidOf(const std::string& model) {
  std::string text;
  for (const std::string& line : LinesOf(model, kData)) text += line + "\n";
  return text;
}

TEST(ShapeMistakes, AFamilysRulesHaveTheirKeys) {
  EXPECT_EQ(SaidOf("preset: deepvit-8b, qkv_bias: true, patch_size: 3"),
            "r.yaml:1:39: model.qkv_bias: a DeepViT, which has reattention, has no such biases\n"
            "r.yaml:1:57: model.patch_size: 3 does not divide image_size 256\n");
  EXPECT_EQ(SaidOf("family: regnet, hidden_sizes: [], depths: []"),
            "r.yaml:1:39: model.hidden_sizes: 0 stages, want 1 to 16\n");
  EXPECT_EQ(SaidOf("family: dhen, table_rows: [], num_attention_heads: 3"),
            "r.yaml:1:35: model.table_rows: a DHEN reads at least one column of ids\n"
            "r.yaml:1:60: model.num_attention_heads: 3 heads do not divide table_width 64\n");
  EXPECT_EQ(SaidOf("family: t5, relative_attention_max_distance: 16"),
            "r.yaml:1:54: model.relative_attention_max_distance: 16 is not above half of "
            "relative_attention_num_buckets, 32\n");
  EXPECT_EQ(SaidOf("family: llama, num_key_value_heads: 5, head_dim: 3"),
            "r.yaml:1:45: model.num_key_value_heads: 5 key and value heads do not divide 32 heads\n"
            "r.yaml:1:58: model.head_dim: 3 cannot be rotated in pairs: it is odd\n");
  for (const char* family : {"vit", "regnet"}) {
    EXPECT_NE(SaidOf("family: " + std::string(family) + ", num_labels: 1")
                  .find("model.num_labels: a classifier of one class cannot learn"),
              std::string::npos);
  }
}

// A value of the wrong type in one field says nothing about rules that do not read it.
TEST(ShapeMistakes, AWrongTypeHidesOnlyRulesThatReadIt) {
  EXPECT_EQ(
      SaidOf("family: llama, hidden_size: x, num_key_value_heads: 5"),
      "r.yaml:1:37: model.hidden_size: want an integer from 1 to 1048576, got the text `x`\n"
      "r.yaml:1:61: model.num_key_value_heads: 5 key and value heads do not divide 32 heads\n");
}

// The model that is built to judge globs has as many tables as a recipe may have.
TEST(ShapeMistakes, AsManyTablesAsAFamilyTakesAreGood) {
  for (const int tables : {1, 2, 4095, 4096}) {
    std::string rows = "1";
    for (int i = 1; i < tables; ++i) rows += ",1";
    for (const char* vectors : {"", ", num_vectors: 4096, dense_vectors: 1"}) {
      EXPECT_EQ(SaidOf("family: dhen, table_rows: [" + rows + "]" + vectors), "") << tables;
    }
  }
}

}  // namespace
}  // namespace fsdp
