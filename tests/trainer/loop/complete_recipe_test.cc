#include "trainer/loop/complete_recipe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/saved_checkpoint.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/data/tokens/token_manifest.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;
using testing::SavedCheckpoint;
using testing::UnusedPath;
using Strings = std::vector<std::string>;

const std::string kTokenizers = "tests/fixtures/tokenizers/";
const std::string kGpt2 = kTokenizers + "gpt2.json";  // Has 1001 tokens.

// `model` and `data` are maps; no run is there to go on with.
Recipe Load(const std::string& model, const std::string& data, const Strings& more = {}) {
  Strings overrides = {"run.dir=" + UnusedPath("new")};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return ParseRecipe({{"r.yaml", "model: " + model + "\ndata: " + data + "\n"}}, overrides, nullptr,
                     CompleteRecipe);
}

std::string ErrorOf(const std::string& model, const std::string& data) {
  return testing::ErrorOf<ConfigError>([&] { Load(model, data); }, "none");
}

// A Hugging Face directory, as far as it is looked at here.
std::string HfDirectory(const std::string& name, const Strings& files) {
  const std::string directory = FreshDirectory(name);
  WriteAtomicFile(directory + "/config.json", "{}");
  for (const std::string& file : files) WriteAtomicFile(directory + "/" + file, "");
  return directory;
}

TEST(CompleteRecipe, TextIsReadByTheTokenizerBesideTheWeights) {
  const std::string sources =
      "{train: [{paths: [x]}, {source: tokens, paths: [y]}], valid: {paths: [z]}}";
  for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
    const std::string hf = HfDirectory("hf", {file});
    const Recipe recipe = Load("{init_from: " + hf + "}", sources);
    EXPECT_EQ(recipe.data.TrainSources()[0].tokenizer, hf + "/" + file);
    EXPECT_EQ(recipe.data.TrainSources()[1].tokenizer, "bytes");  // Nobody says.
    EXPECT_EQ(recipe.data.ValidSources()[0].tokenizer, hf + "/" + file);
    EXPECT_EQ(recipe.notes, Strings{"tokenizer: " + hf + "/" + file + ", that of model.init_from"});
    const Recipe bytes = Load("{init_from: " + hf + "}", "{train: {paths: [x], tokenizer: bytes}}");
    EXPECT_EQ(bytes.data.TrainSources()[0].tokenizer, "bytes");
    EXPECT_EQ(bytes.notes, Strings{});
  }
}

TEST(CompleteRecipe, TextNeedsATokenizerWhereNoneIsBesideTheWeights) {
  const std::string hf = HfDirectory("without", {});
  const std::string why = "required: " + hf +
                          " has no tokenizer beside its weights. Name the tokenizer.json or .model "
                          "that they were trained with, or `bytes`";
  EXPECT_EQ(ErrorOf("{init_from: " + hf + "}",
                    "{train: {paths: [x]}, valid: [{name: a, paths: [y]}, {name: b, paths: [z], "
                    "tokenizer: bytes}], seq_len: 0}"),
            "r.yaml:2:8: data.train.tokenizer: " + why +
                "\nr.yaml:2:37: data.valid[0].tokenizer: " + why +
                "\nr.yaml:2:111: data.seq_len: want an integer from 1 to 16777216, got 0");
  EXPECT_EQ(ErrorOf("{init_from: " + hf + "}", "{train: {paths: [x], tokenizer: bytes}}"), "none");
  // Bad weights are no mistake of the recipe: a run reports them.
  EXPECT_EQ(ErrorOf("{init_from: " + UnusedPath("gone") + "}", "{train: {paths: [x]}}"), "none");
}

TEST(CompleteRecipe, TheVocabularyIsTheTokenizersSize) {
  const auto vocabulary = [](const std::string& data, const std::string& model = "") {
    const Recipe recipe = Load("{family: gpt2" + model + "}", data);
    Strings found = recipe.notes;
    found.insert(found.begin(), std::to_string(*recipe.model.Get<int64_t>("vocab_size")));
    return found;
  };
  const std::string text = "{train: {paths: [x], tokenizer: " + kGpt2 + "}}";
  EXPECT_EQ(vocabulary(text),
            (Strings{"1001", "vocabulary: 1001 tokens, as many as tokenizer " + kGpt2 + " has"}));
  EXPECT_EQ(vocabulary(text, ", vocab_multiple: 64"),
            (Strings{"1024", "vocabulary: 1024 tokens, the 1001 of tokenizer " + kGpt2 +
                                 " rounded up to a multiple of 64"}));
  EXPECT_EQ(vocabulary("{train: {paths: [x]}}"),
            (Strings{"256", "vocabulary: 256 tokens, as many as tokenizer bytes has"}));
  // Where somebody says it nothing is looked for.
  EXPECT_EQ(vocabulary(text, ", vocab_size: 2000"), Strings{"2000"});
  EXPECT_EQ(vocabulary(text, ", preset: gpt2-124m"), Strings{"50257"});
  EXPECT_EQ(vocabulary("{train: {source: synthetic}}"), Strings{"50257"});
  const std::string gone = "{train: {paths: [x], tokenizer: " + UnusedPath("gone.json") + "}}";
  const Strings without = vocabulary(gone, ", vocab_multiple: 64");
  ASSERT_EQ(without.size(), 2u);
  EXPECT_EQ(without[0], "50304");
  EXPECT_EQ(without[1].rfind("vocabulary: 50304 tokens, gpt2's default: tokenizer: ", 0), 0u);
  // A number that somebody gives is to be what it says.
  EXPECT_EQ(ErrorOf("{family: gpt2, vocab_size: 1001, vocab_multiple: 64}", text),
            "r.yaml:1:57: model.vocab_multiple: model.vocab_multiple is 64, which rounds up what a "
            "tokenizer decides, but the vocabulary is decided already: 1001, no multiple of it");
}

// As tokens.json says, beside what `fsdp-train tokenize` has written.
TEST(CompleteRecipe, TokensSayWhoMadeThem) {
  const std::string tokens = FreshDirectory("tokens");
  TokenManifest manifest;
  manifest.tokenizer = "t.json";
  manifest.tokenizer_hash = 2;
  manifest.vocab_size = 700;
  manifest.tokens = 1;
  manifest.shards = {{"a.bin", 1}};
  WriteAtomicFile(tokens + "/" + kTokenManifest, ToJson(manifest));
  const std::string made = "{source: tokens, paths: [" + tokens + "]}";
  EXPECT_EQ(Load("{family: llama}", "{train: " + made + "}").model.Get<int64_t>("vocab_size"), 700);
  EXPECT_EQ(Load("{family: llama}", "{train: [" + made + ", {source: synthetic}]}")
                .model.Get<int64_t>("vocab_size"),
            700);
  // Two that are not the same one decide nothing.
  const Recipe two =
      Load("{family: llama}", "{train: [" + made + ", {paths: [x], tokenizer: " + kGpt2 + "}]}");
  EXPECT_EQ(two.model.Get<int64_t>("vocab_size"), 32000);
  EXPECT_EQ(two.notes, Strings{});
}

TEST(CompleteRecipe, ARunDirectoryIsItsLatestCheckpoint) {
  const std::string text = FreshDirectory("text") + "/t.txt";
  WriteAtomicFile(text, std::string(200, 'a'));
  const std::string checkpoint = SavedCheckpoint(
      "first", {"data.train={source: text, paths: [" + text + "], tokenizer: bytes}"});
  const std::string run = fs::path(checkpoint).parent_path().parent_path();
  const Recipe recipe = Load("{init_from: " + run + "}", "{train: {paths: [x]}}");
  EXPECT_EQ(recipe.model.init_from, checkpoint);
  EXPECT_EQ(recipe.notes,
            (Strings{"model.init_from: " + checkpoint + ", the latest checkpoint of " + run,
                     "tokenizer: bytes, that of model.init_from"}));
}

// A backbone is trained to tell the folders of data.train apart, or as many classes as the recipe
// says; without either, those of its config.json.
TEST(CompleteRecipe, AHeadThatIsDrawnHasTheClassesOfTheData) {
  const std::string vit = FreshDirectory("vit"), images = FreshDirectory("images");
  WriteAtomicFile(vit + "/config.json",
                  R"({"model_type": "vit", "hidden_size": 8, "num_attention_heads": 2})");
  const SafetensorsEntry entry{"embeddings.cls_token", SafetensorsType::kF32, {0}};
  SafetensorsWriter(vit + "/model.safetensors", {&entry, 1}).Finish();
  for (const char* name : {"ants", "bees", "crows", "dogs", "emus"}) {
    fs::create_directory(images + "/" + name);
    fs::copy_file("tests/fixtures/images/colours.png", images + "/" + name + "/a.png");
  }
  const std::string folders = "{train: {source: images, paths: [" + images + "]}}";
  const Recipe recipe = Load("{init_from: " + vit + "}", folders);
  EXPECT_EQ(recipe.model.Get<int64_t>("num_labels"), 5);
  EXPECT_EQ(recipe.notes,
            Strings{"model.num_labels: 5, the classes of data.train: " + vit + " has no head"});
  const auto labels = [](const std::string& model, const std::string& data) {
    return Load(model, data).model.Get<int64_t>("num_labels");
  };
  EXPECT_EQ(labels("{init_from: " + vit + ", num_labels: 7}", folders), 7);
  EXPECT_FALSE(labels("{init_from: " + vit + "}", "{train: {source: synthetic}}"));
}

TEST(CompleteRecipe, AFamilyKeepsWhatOverflowsInFp16) {
  const std::string data = "{train: {source: synthetic}}";
  const std::string fp16 = "fsdp.mixed_precision={param_dtype: fp16}";
  const auto kept = [&](const std::string& model, const std::string& mixed) {
    return Load(model, data, {mixed}).fsdp.mixed_precision.keep_fp32;
  };
  const Strings wo = {"*.wo.weight"};
  for (const char* t5 : {"{family: t5}", "{preset: t5-v1.1-small}"}) EXPECT_EQ(kept(t5, fp16), wo);
  EXPECT_EQ(kept("{init_from: tests/fixtures/t5/gated}", fp16), wo);
  EXPECT_EQ(kept("{family: t5}", "fsdp.mixed_precision={param_dtype: bf16}"), Strings());
  EXPECT_EQ(kept("{family: t5}", "fsdp.mixed_precision={param_dtype: fp16, keep_fp32: []}"),
            Strings());
  EXPECT_EQ(kept("{preset: gpt2-124m}", fp16), Strings());
  const Strings notes = Load("{family: t5}", data, {fp16}).notes;
  ASSERT_FALSE(notes.empty());
  EXPECT_EQ(notes.back(), "fsdp.mixed_precision.keep_fp32: *.wo.weight, as `t5` has it in fp16");
}

// Weights, tokenizer and the run that it began with may be other ones by now, or gone.
TEST(CompleteRecipe, ARunThatGoesOnIsWhatItsCheckpointSays) {
  const std::string text = FreshDirectory("text") + "/t.txt", tokenizer = UnusedPath("t.json");
  std::string words;
  for (int i = 0; i < 100; ++i) words += "word " + std::to_string(i * i) + ". ";
  WriteAtomicFile(text, words);
  fs::copy_file(kGpt2, tokenizer);
  const std::string first = SavedCheckpoint("began", {"model.vocab_size=1300"});
  const std::string begun = fs::path(first).parent_path().parent_path();
  const std::string source = "{source: text, paths: [" + text + "], tokenizer: " + tokenizer + "}";
  SavedCheckpoint("goes_on", {"model={init_from: " + first + ", vocab_size: 1300}",
                              "data.train=" + source, "data.cache=" + UnusedPath("cache")});
  const Strings there = {"run.dir=" + ::testing::TempDir() + "/goes_on"};
  fs::remove(tokenizer);
  fs::remove_all(begun);
  const Recipe recipe = Load("{init_from: " + begun + "/.}", "{train: {paths: [x]}}", there);
  EXPECT_EQ(recipe.model.init_from, first);
  EXPECT_EQ(recipe.data.TrainSources()[0].tokenizer, tokenizer);
  EXPECT_EQ(recipe.notes, Strings{});
  const Recipe fresh = Load("{family: llama}", "{train: " + source + "}", there);
  EXPECT_EQ(fresh.model.Get<int64_t>("vocab_size"), 1300);
  EXPECT_EQ(fresh.notes, Strings{});
}

}  // namespace
}  // namespace fsdp
