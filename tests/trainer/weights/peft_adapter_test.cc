#include "trainer/weights/peft_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "tests/trainer/weights/patched.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ErrorOf;
using testing::FreshDirectory;
using testing::Json;

const std::string kFixtures = "tests/fixtures/peft/";

// A copy of an adapter, with these members of its adapter_config.json; null removes one.
std::string Copy(const std::string& name, const Json& members = Json::object()) {
  const std::string directory = FreshDirectory("adapter");
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy_file(kFixtures + name + "/" + file, directory + "/" + file);
  }
  const Json config = Json::parse(ReadWholeFile(directory + "/adapter_config.json"));
  std::ofstream(directory + "/adapter_config.json") << testing::Patched(config, members);
  return directory;
}

std::string BaseOf(const std::string& name) {
  return Json::parse(ReadWholeFile(kFixtures + name + "/adapter_config.json"))
      .at("base_model_name_or_path");
}

// Slices of the model by name, as `weights` gives them, `piece` elements at a time.
std::map<std::string, std::vector<float>> Read(const WeightsPath& from, int64_t piece) {
  const auto model = MakeModel(ReadInitialShape(from));
  const WeightSource weights = OpenInitialWeights(from);
  std::map<std::string, std::vector<float>> all;
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* p : segment.parameters) {
      std::vector<float> values(static_cast<size_t>(p->shape().NumElements()));
      for (int64_t at = 0; at < std::ssize(values); at += piece) {
        const auto count = std::min<int64_t>(piece, std::ssize(values) - at);
        weights.parameters(*p, at, std::span(values).subspan(at, count));
      }
      for (const ParameterSlice& slice : p->slices()) {
        const auto begin = values.begin() + slice.begin;
        all[slice.name].assign(begin, begin + slice.shape.NumElements());
      }
    }
  }
  return all;
}

class PeftFixture : public ::testing::TestWithParam<const char*> {};

// merge_and_unload() made them in float64; all other weights are the base's.
TEST_P(PeftFixture, IsMergedAsPeftDoes) {
  const std::string name = GetParam();
  const SafetensorsReader merged(kFixtures + name + "/merged.safetensors");
  const auto base = Read(BaseOf(name), 1 << 20), whole = Read(kFixtures + name, 1 << 20);
  EXPECT_EQ(whole, Read(kFixtures + name, 37));  // As ranks read them.
  std::set<std::string> changed;
  for (const auto& [slice, values] : whole) {
    std::vector<float> want = base.at(slice);
    const bool is_merged = merged.Contains(slice);
    if (is_merged) merged.ReadFloat(slice, 0, want);
    ASSERT_EQ(values.size(), want.size()) << slice;
    for (size_t i = 0; i < want.size(); ++i) {
      // Both sums are float64, and rounded once; scales of 5 / 3 differ by a float's rounding.
      ASSERT_NEAR(values[i], want[i], is_merged ? 1e-6 * std::max(1.0f, std::abs(want[i])) : 0)
          << slice << " " << i;
    }
    if (is_merged) changed.insert(slice);
  }
  EXPECT_EQ(changed.size(), merged.Names().size());
}

INSTANTIATE_TEST_SUITE_P(All, PeftFixture,
                         ::testing::Values("plain", "patterns", "rslora", "ends", "whole", "biases",
                                           "t5", "vit", "experts", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

// transformers applies an adapter that lies beside weights, whatever base it names.
TEST(PeftAdapter, BesideWeightsIsOfThese) {
  const std::string directory = Copy("rslora", {{"base_model_name_or_path", "owner/gone"}});
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy_file(BaseOf("rslora") + "/" + file, directory + "/" + file);
  }
  EXPECT_EQ(Read(directory, 1000), Read(kFixtures + "rslora", 1000));
  EXPECT_EQ(FindInitialWeights(directory), directory);
  EXPECT_EQ(InitialNotes(directory), std::vector<std::string>{"the PEFT adapter of " + directory +
                                                              " is merged into these weights"});
  EXPECT_NE(ErrorOf([&] {
              ImportHf(directory, testing::UnusedPath("imported"), nullptr);
            }).find("holds a PEFT adapter, which an import does not merge"),
            std::string::npos);
}

// model.base comes before the weights beside an adapter and before the base that it names.
TEST(PeftAdapter, TheRecipeNamesItsBase) {
  const std::string directory = Copy("rslora", {{"base_model_name_or_path", "owner/gone"}});
  ModelRecipe model;
  model.init_from = directory;
  model.base = BaseOf("rslora");
  EXPECT_EQ(Read(model, 1000), Read(kFixtures + "rslora", 1000));
  EXPECT_EQ(FindInitialWeights(model), directory);
  EXPECT_EQ(FindBaseWeights(model), BaseOf("rslora"));
  model.base = "gone";
  EXPECT_TRUE(ErrorOf([&] { ReadInitialShape(model); })
                  .starts_with(directory +
                               " is a PEFT adapter, and its base, model.base, is `gone`, "
                               "which is no directory of weights here"));
  model.base = directory;  // An adapter is no base.
  EXPECT_NE(ErrorOf([&] { ReadInitialShape(model); }).find("which is no directory of weights here"),
            std::string::npos);
  model.init_from = BaseOf("rslora");
  EXPECT_EQ(ErrorOf([&] { ReadInitialShape(model); }),
            "model.base: " + directory + " would be the base of a PEFT adapter, but " +
                "model.init_from, " + BaseOf("rslora") + ", is none: leave out one of them");
}

TEST(PeftAdapter, ItsBaseMustBeHere) {
  const auto error = [](const Json& base) {
    const std::string directory = Copy("plain", {{"base_model_name_or_path", base}});
    const std::string words = ErrorOf([&] { ReadInitialShape(directory); });
    EXPECT_TRUE(words.starts_with(directory + " is a PEFT adapter, and its base, ")) << words;
    EXPECT_NE(words.find("merge_and_unload()"), std::string::npos) << words;
    return words;
  };
  EXPECT_NE(error("owner/model").find("`owner/model`, which is no directory of weights here"),
            std::string::npos);
  EXPECT_NE(error("owner/model").find("`hf download owner/model --local-dir DIR`"),
            std::string::npos);
  EXPECT_NE(error(nullptr).find("is not named"), std::string::npos);
  EXPECT_NE(error(kFixtures + "rslora").find("no directory of weights"), std::string::npos);
}

TEST(PeftAdapter, RefusesByKeyWhatItDoesNotMerge) {
  const auto error = [](const char* name, const Json& members) {
    const std::string directory = Copy(name, members);
    const std::string words = ErrorOf([&] { OpenInitialWeights(directory); }, "none");
    return words.starts_with(directory) ? words.substr(directory.size()) : words;
  };
  const std::string file = "/adapter_config.json: ";
  for (const auto& [members, want] : std::vector<std::pair<Json, std::string>>{
           {{{"peft_type", "IA3"}}, "peft_type: \"IA3\" is not in this version, only \"LORA\""},
           {{{"peft_type", nullptr}}, "peft_type: null is not in this version"},
           {{{"use_dora", true}}, "use_dora: true is not in this version: merge the adapter"},
           {{{"lora_bias", true}}, "lora_bias: true is not in this version"},
           {{{"bias", "some"}}, "bias: \"some\" is not in this version"},
           {{{"init_lora_weights", "pissa"}}, "init_lora_weights: \"pissa\" is not in this"},
           {{{"layer_replication", {{0, 2}}}}, "layer_replication: a list is not in this version"},
           {{{"trainable_token_indices", {3}}}, "trainable_token_indices: a list is not in this"},
           {{{"some_future_key", 2}}, "some_future_key: 2 is not in this version"},
           {{{"alpha_pattern", {{"layers.[01].q_proj", 3}}}},
            "alpha_pattern: 'layers.[01].q_proj' is a regular expression"},
           {{{"alpha_pattern", {{"q_proj", 3}, {"self_attn.q_proj", 4}}}},
            "alpha_pattern: has two numbers for model.layers.0.self_attn.q_proj"},
           {{{"r", 0}}, "r: the rank of model.layers.0.self_attn.q_proj is no number from 1"}}) {
    const std::string words = error("plain", members);
    EXPECT_EQ(words.substr(0, (file + want).size()), file + want) << members;
  }
  for (const Json& harmless :
       {Json{{"init_lora_weights", "gaussian"}}, Json{{"modules_to_save", {"lm_head"}}},
        Json{{"some_future_key", false}}, Json{{"lora_dropout", 0.25}}}) {
    EXPECT_EQ(error("plain", harmless), "none") << harmless;
  }
  EXPECT_NE(error("plain", {{"r", 4}}).find("want [4, "), std::string::npos);
  EXPECT_NE(error("plain", {{"base_model_name_or_path", "tests/fixtures/llama/qwen3_documents"}})
                .find("adapter_model.safetensors: "),
            std::string::npos);
  EXPECT_NE(error("plain", {{"base_model_name_or_path", "tests/fixtures/gpt2/one_head"}})
                .find("', which is no weight of the model, nor A and B of one"),
            std::string::npos);
  const std::string directory = Copy("plain", {{"lora_dropout", "NaN"}});
  std::string config = ReadWholeFile(directory + "/adapter_config.json");
  config.replace(config.find("\"NaN\""), 5, "NaN");  // As Python writes it, in no key that counts.
  std::ofstream(directory + "/adapter_config.json") << config;
  EXPECT_EQ(ErrorOf([&] { OpenInitialWeights(directory); }, "none"), "none");
  fs::rename(directory + "/adapter_model.safetensors", directory + "/adapter_model.bin");
  EXPECT_EQ(ErrorOf([&] { OpenInitialWeights(directory); }),
            directory +
                ": holds no adapter_model.safetensors, but adapter_model.bin, which is not "
                "read: peft's save_pretrained() writes safetensors");
}

// One of a tied embedding would change the head, which peft leaves as it is.
TEST(PeftAdapter, RefusesWhatIsUsedTwice) {
  const std::string base = "tests/fixtures/gpt2/one_head";  // 509 tokens, width 64.
  const auto error = [&](std::vector<SafetensorsEntry> entries) {
    const std::string directory = FreshDirectory("tied");
    std::ofstream(directory + "/adapter_config.json") << Json{
        {"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 1}, {"base_model_name_or_path", base}};
    for (SafetensorsEntry& entry : entries) {
      entry.name = "base_model.model.transformer.wte." + entry.name;
    }
    SafetensorsWriter writer(directory + "/adapter_model.safetensors", entries);
    for (const SafetensorsEntry& entry : entries) {
      const auto bytes = static_cast<size_t>(4 * entry.shape[0] * entry.shape[1]);
      writer.WriteBytes(entry.name, 0, std::vector<std::byte>(bytes));
    }
    writer.Finish();
    return ErrorOf([&] { OpenInitialWeights(directory); });
  };
  constexpr auto kType = SafetensorsType::kF32;
  EXPECT_NE(error({{"lora_embedding_A", kType, {1, 509}}, {"lora_embedding_B", kType, {64, 1}}})
                .find("adapts 'transformer.wte', which the model uses in two places"),
            std::string::npos);
  EXPECT_NE(error({{"weight", kType, {509, 64}}})
                .find("adapts 'transformer.wte.weight', which the model uses in two places"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp
