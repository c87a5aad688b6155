#include "trainer/loop/show_data.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "tests/trainer/data/pillow_images.h"
#include "trainer/core/errors.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using json = testing::Json;
using Strings = std::vector<std::string>;

constexpr char kGpt2[] =
    "{family: gpt2, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2,\n"
    "  vocab_size: 256, max_position_embeddings: 16}";
constexpr char kT5[] =
    "{family: t5, vocab_size: 384, hidden_size: 16, num_hidden_layers: 1,\n"
    "  num_decoder_layers: 1, num_attention_heads: 2, head_dim: 8, intermediate_size: 32}";
constexpr char kDhen[] =
    "{family: dhen, dense_columns: 2, table_rows: [24], table_bags: [2], table_width: 16,\n"
    "  dense_vectors: 4, num_vectors: 10, num_hidden_layers: 1, num_attention_heads: 2,\n"
    "  cross_rank: 16, intermediate_size: 32}";

Recipe Of(const std::string& model, const std::string& train, const Strings& more = {}) {
  return ParseRecipe({{"r.yaml", "model: " + model + "\ndata: {train: " + train +
                                     ", valid: null, seq_len: 16, shuffle: false}\n"
                                     "train: {steps: 2, micro_batch_size: 1, global_batch_size: "
                                     "2}\n"}},
                     more);
}

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = testing::FreshDirectory("show_data") + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string Show(const Recipe& recipe, const ShowDataOptions& options) {
  std::ostringstream out;
  ShowData(recipe, options, {}, out);
  return out.str();
}
json Json(const Recipe& recipe, int64_t samples) {
  return json::parse(Show(recipe, {.samples = samples, .json = true}));
}

TEST(ShowData, MarksTheTargetsOfPackedDocuments) {
  const std::string path = Write("a.txt", "abc.de.x.lmnopqrstuvwxyzlmno.fghijklmnop.");
  const Recipe recipe =
      Of(kGpt2, "{paths: [" + path + "], eot: 46}", {"data.packing=samples", "data.too_long=drop"});
  EXPECT_EQ(Show(recipe, {.samples = 2}),
            "tokens that the loss counts, the targets, are between « and »\n"
            "sample 0 of data.train, " +
                path +
                ", byte 4\n"
                "  text: 5 tokens, 3 targets, 2 documents\n"
                "  tokens 0 to 2, positions 0 to 2:\nd«e.»\n"
                "  tokens 3 to 4, positions 0 to 1:\nx«.»\n"
                "sample 1 of data.train, " +
                path +
                ", byte 0\n"
                "  text: 16 tokens, 14 targets, 2 documents\n"
                "  tokens 0 to 3, positions 0 to 3:\na«bc.»\n"
                "  tokens 4 to 15, positions 0 to 11:\nf«ghijklmnop.»\n"
                "data.train: samples 2, tokens 21, documents 5, longest 20, cut 0, dropped 1, "
                "without targets 0\n");
  const std::string green = Show(recipe, {.samples = 1, .colours = true});
  EXPECT_NE(green.find("\nd\x1b[32me.\x1b[0m\n"), std::string::npos) << green;
  const json page = Json(recipe, 1);
  const json text = page["samples"][0]["texts"][0];
  EXPECT_EQ(text["text"], "de.x.");
  EXPECT_EQ(text["targets"], json({0, 1, 1, 0, 1}));
  EXPECT_EQ(text["positions"], json({0, 1, 2, 0, 1}));
  EXPECT_EQ(page["sources"][0]["dropped"], 1);
}

// A loader deals out the samples that are shown, in their order.
TEST(ShowData, ShowsWindowsInTheOrderOfTraining) {
  const std::string path = Write("a.txt", "It is a text without an end, of some forty-nine bytes");
  const Recipe recipe = Of(kGpt2, "{paths: [" + path + "]}", {"data.shuffle=true", "run.seed=3"});
  const json page = Json(recipe, 3);
  const RunData data = OpenData(recipe, ShapeFor(recipe), 1, 3, recipe.data.valid);
  const auto& samples = dynamic_cast<const Samples&>(data.train->rows());
  std::string text = "It is a text without an end, of some forty-nine bytes";
  for (int64_t i = 0; i < 3; ++i) {
    const auto at = static_cast<size_t>(samples.PlaceOf(i).offset);
    const json shown = page["samples"][static_cast<size_t>(i)];
    EXPECT_EQ(shown["texts"][0]["text"], text.substr(at, 17));  // The last one is a target alone.
    EXPECT_EQ(shown["where"], path + ", byte " + std::to_string(at));
    EXPECT_EQ(shown["texts"][0]["targets"].get<std::vector<int>>()[0], 0);
    EXPECT_EQ(shown["texts"][0]["tokens"], 17);
  }
  EXPECT_EQ(page["sources"], json::parse(R"([{"source": "data.train", "samples": 3,
                                              "tokens": 48}])"));
}

TEST(ShowData, ShowsInputsAndTargetsOfPairs) {
  const std::string path = Write("a.jsonl", R"({"input": "abc", "target": "de"}
{"input": "a text that is longer than a row", "target": "x"}
)");
  const Recipe recipe = Of(kT5, "{source: pairs, paths: [" + path + "], eot: 1}",
                           {"data.objective=seq2seq", "data.target_len=4", "data.too_long=drop",
                            "train.global_batch_size=1"});
  const json page = Json(recipe, 1), texts = page["samples"][0]["texts"];
  EXPECT_EQ(texts[0]["name"], "input");
  EXPECT_EQ(texts[0]["text"], "abc\x01");
  EXPECT_EQ(texts[0]["targets"], json({0, 0, 0, 0}));
  EXPECT_EQ(texts[1]["text"], "de\x01");
  EXPECT_EQ(texts[1]["targets"], json({1, 1, 1}));
  EXPECT_EQ(page["sources"], json::parse(R"([{"source": "data.train", "samples": 1, "pairs": 2,
      "longest_input": 33, "longest_target": 3, "cut": 0, "dropped": 1}])"));
}

TEST(ShowData, NamesTheColumnsOfClicks) {
  const std::string path = Write("a.csv", "label,price,age,user\n1,0.1,,7|0xff\n0,2,3,\n");
  const Recipe recipe = Of(
      kDhen, "{source: clicks, paths: [" + path + "], dense: [price, age], categorical: [user]}");
  EXPECT_EQ(Show(recipe, {.samples = 2}),
            "sample 0 of data.train\n"
            "  label: 1\n  price: 0.1\n  age: 0\n  user: 7|255\n"
            "sample 1 of data.train\n"
            "  label: 0\n  price: 2\n  age: 3\n  user: \n"
            "data.train: samples 2\n");
  EXPECT_EQ(Json(recipe, 1)["samples"][0]["facts"][1],
            json::parse(R"({"name": "price", "value": "0.1"})"));
}

TEST(ShowData, ShowsClassesAndSizesOfImages) {
  const std::string folder = testing::FreshDirectory("show_images");
  for (const std::string name : {"ants", "bees"}) {
    std::filesystem::create_directories(folder + "/" + name);
    std::ofstream(folder + "/" + name + "/1.png", std::ios::binary)
        << testing::ImageFixture("grey.png");
  }
  const auto of = [&](const std::string& labels) {
    return Of(
        "{family: vit, image_size: 6, patch_size: 3, num_channels: 1, hidden_size: 16,\n"
        "  num_hidden_layers: 1, num_attention_heads: 2" +
            labels + "}",
        "{source: images, paths: [" + folder + "]}");
  };
  const std::string shown = Show(of(", num_labels: 2"), {.samples = 2});
  EXPECT_NE(shown.find("sample 1 of data.train, " + folder + "/bees/1.png\n  class: 1, bees\n"),
            std::string::npos)
      << shown;
  EXPECT_NE(shown.find("\n  channels: 1\n  read as: 6 x 6\ndata.train: samples 2, classes 2\n"
                       "classes: ants bees\n"),
            std::string::npos)
      << shown;
  // More classes than folders: only where the recipe says so.
  EXPECT_EQ(Json(of(", num_labels: 5"), 1)["classes"], json({"ants", "bees"}));
  try {
    Show(of(""), {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("set model.num_labels: 2, or 1000"), std::string::npos)
        << error.what();
  }
}

TEST(ShowData, ThrowsWhatARunThrows) {
  const Recipe recipe = Of(kGpt2, "{paths: [/no/a.txt]}");
  EXPECT_THROW(Show(recipe, {}), DataError);
}

TEST(WhyCrowded, NamesRanksBeyondTheCores) {
  const Recipe recipe = Of(kGpt2, "{source: synthetic}", {"run.device=cpu"});
  EXPECT_EQ(WhyCrowded(recipe, 1), "");
  EXPECT_NE(WhyCrowded(recipe, 9999).find("9999 ranks on "), std::string::npos);
  EXPECT_EQ(WhyCrowded(Of(kGpt2, "{source: synthetic}", {"run.device=cuda"}), 9999), "");
}

}  // namespace
}  // namespace fsdp
