// Checkpoints of runs as Hugging Face directories: what ends a text, settings of the base, names of
// classes, and what becomes of an image.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "models/gpt2/config.h"
#include "models/regnet/config.h"
#include "models/shape.h"
#include "models/vit/config.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/core/atomic_file.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/model.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_export.h"
#include "trainer/weights/hf_weights.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;
using testing::Json;
using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

constexpr const char* kRest =
    "train: {steps: 1, micro_batch_size: 1, global_batch_size: 1}\n"
    "optimizer: {lr: 1.0e-3}\n";

std::string Checkpoint(const std::string& path, const ModelShape& shape, const std::string& recipe,
                       const Strings& classes = {}) {
  const auto model = MakeModel(shape);
  WholeCheckpoint checkpoint;
  checkpoint.meta.config = ShapeToJson(shape);
  checkpoint.meta.recipe = recipe;
  checkpoint.meta.classes = classes;
  checkpoint.layout = MakeLayout(ShapesOf(*model), WrapPolicy(), 1);
  checkpoint.states = {"master"};
  for (const ModelBuffer* buffer : BuffersOf(*model)) {
    checkpoint.buffers.push_back({buffer->name(), "", buffer->dtype(), buffer->shape()});
  }
  WriteCheckpoint(
      path, checkpoint,
      [](const std::string&, const Placement&, int64_t, std::span<float> out) {
        std::fill(out.begin(), out.end(), 0.5f);
      },
      nullptr,
      [](const OwnTensor&, int64_t, const View& out) {
        std::fill_n(out.data, out.bytes(), std::byte{0});
      });
  return path;
}

// The file of the export of `checkpoint`; null where there is none.
Json Exported(const std::string& checkpoint, const std::string& file, Strings* warnings = nullptr) {
  static int count = 0;
  const std::string out = FreshDirectory("exported") + "/" + std::to_string(count++);
  const CheckpointExported exported =
      ExportCheckpoint(HoldCheckpoint(checkpoint), out, "", std::nullopt, {}, nullptr);
  if (warnings != nullptr) *warnings = exported.warnings;
  if (!fs::exists(out + "/" + file)) return nullptr;
  return Json::parse(ReadWholeFile(out + "/" + file));
}

// --- Texts ---

class ExportOfTexts : public ::testing::Test {
 protected:
  ExportOfTexts() {
    fs::copy_file("tests/fixtures/tokenizers/qwen2.json", dir_ + "/tokenizer.json");
    std::ofstream(dir_ + "/chat_template.jinja")
        << "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
           "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    const auto tokenizer = OpenTokenizer(dir_ + "/tokenizer.json");
    eot_ = tokenizer->eot();
    turn_ = *tokenizer->IdOf("<|im_end|>");
    shape_ = Gpt2Config{.hidden_size = 8,
                        .intermediate_size = 8,
                        .num_hidden_layers = 1,
                        .num_attention_heads = 1,
                        .vocab_size = tokenizer->vocab_size(),
                        .max_position_embeddings = 8};
  }
  // A run that began with a base whose generation_config.json has this text.
  std::string Run(const std::string& base_text, const std::string& source) {
    const std::string base = FreshDirectory("base") + "/hf";
    CheckpointReader plain(Checkpoint(FreshDirectory("plain") + "/step_0", shape_, ""));
    ExportHf(plain, shape_, *MakeModel(shape_), base, {}, nullptr);
    fs::remove(base + "/generation_config.json");
    if (!base_text.empty()) std::ofstream(base + "/generation_config.json") << base_text;
    return Checkpoint(FreshDirectory("run") + "/step_1", shape_,
                      "model: {init_from: " + base +
                          "}\ndata: {seq_len: 8, train: {source: " + source +
                          ", paths: [x], tokenizer: " + dir_ + "/tokenizer.json}}\n" + kRest);
  }
  // The ids that end a text, with those of the tokenizer and in chats the end of turn in front.
  Ids With(Ids more, bool chat) const {
    if (eot_) more.insert(more.begin(), *eot_);
    if (chat) more.push_back(turn_);
    Ids once;
    for (const int32_t id : more) {
      if (std::find(once.begin(), once.end(), id) == once.end()) once.push_back(id);
    }
    return once;
  }

  const std::string dir_ = FreshDirectory("tokenizer");
  std::optional<int32_t> eot_;
  int32_t turn_ = 0;
  ModelShape shape_;
};

Ids IdsOf(const Json& json) { return json.is_array() ? json.get<Ids>() : Ids{json.get<int32_t>()}; }

TEST_F(ExportOfTexts, EveryEndThatCameInOrWasLearntEndsAText) {
  for (const auto& [text, came] :
       std::vector<std::pair<std::string, Ids>>{{R"({"eos_token_id": [3, 7, 1]})", {3, 7, 1}},
                                                {R"({"eos_token_id": 5, "pad_token_id": 2})", {5}},
                                                {R"({"eos_token_id": null})", {}},
                                                {R"({"eos_token_id": [4, 4, 999999999]})", {4}},
                                                {"", {}}}) {
    for (const bool chat : {false, true}) {
      const std::string run = Run(text, chat ? "chat" : "text");
      const Ids want = With(came, chat);
      for (const char* file : {"generation_config.json", "config.json"}) {
        const Json json = Exported(run, file);
        EXPECT_EQ(want.empty() ? Ids{} : IdsOf(json["eos_token_id"]), want) << text << file << chat;
      }
    }
  }
  const std::string run = Run(R"({"eos_token_id": [3, 7]})", "text");
  EXPECT_EQ(EndsOfOrigin(run, CheckpointReader(run).manifest().meta), (Ids{3, 7}));
  FreshDirectory("base");
  EXPECT_EQ(EndsOfOrigin(run, CheckpointReader(run).manifest().meta), Ids());
  EXPECT_EQ(Exported(Run(R"({"eos_token_id": 5, "pad_token_id": 2})", "text"),
                     "generation_config.json")["pad_token_id"],
            2);
}

TEST_F(ExportOfTexts, SamplingSettingsOfTheBaseStay) {
  const std::string settings =
      R"("do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
         "repetition_penalty": 1.05, "bos_token_id": 6, "transformers_version": "4.51.0")";
  Json want = Json::parse("{" + settings + "}");
  Json got =
      Exported(Run("{" + settings + R"(, "eos_token_id": 5, "_from_model_config": true})", "chat"),
               "generation_config.json");
  for (const auto& [key, value] : want.items()) EXPECT_EQ(got[key], value) << key;
  EXPECT_FALSE(got.contains("_from_model_config"));
  // A base that is gone is named, and the rest is exported.
  const std::string run = Run("{" + settings + "}", "text");
  FreshDirectory("base");
  Strings warnings;
  got = Exported(run, "generation_config.json", &warnings);
  EXPECT_FALSE(got.contains("temperature"));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("no generation settings of model.init_from"), std::string::npos);
}

// Wherever the directory is by now, and from a reshard or a run of the import.
TEST_F(ExportOfTexts, AnImportComesOutAsItWentIn) {
  const std::string base = FreshDirectory("base") + "/hf", dir = FreshDirectory("imports");
  CheckpointReader plain(Checkpoint(FreshDirectory("plain") + "/step_0", shape_, ""));
  ExportHf(plain, shape_, *MakeModel(shape_), base, {.dtype = DType::kBFloat16}, nullptr);
  std::map<std::string, std::string> files = {
      {"tokenizer.json", ReadWholeFile(dir_ + "/tokenizer.json", kAnySize)},
      {"tokenizer_config.json",
       R"({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})"},
      {"special_tokens_map.json", R"({"pad_token": "<|endoftext|>"})"},
      {"chat_template.jinja", ReadWholeFile(dir_ + "/chat_template.jinja")},
      {"additional_chat_templates/tools.jinja", "{{ messages }}"}};
  fs::create_directory(base + "/additional_chat_templates");
  for (const auto& [name, contents] : files) std::ofstream(base + "/" + name) << contents;
  std::ofstream(base + "/generation_config.json")
      << R"({"temperature": 0.5, "length_penalty": NaN, "eos_token_id": [3, 7]})";
  ImportHf(base, dir + "/imported", nullptr);
  FreshDirectory("base");
  ReshardCheckpoint(dir + "/imported", 2, 2, dir + "/resharded", nullptr);
  Checkpoint(dir + "/run", shape_,
             "model: {init_from: " + dir +
                 "/imported}\ndata: {seq_len: 8, train: {source: text, "
                 "paths: [x], tokenizer: " +
                 dir + "/imported/tokenizer.json}}\n" + kRest);
  for (const char* from : {"/imported", "/resharded", "/run"}) {
    SCOPED_TRACE(from);
    const std::string out = dir + "/out" + from;
    const CheckpointExported exported =
        ExportCheckpoint(HoldCheckpoint(dir + from), out, "", std::nullopt, {}, nullptr);
    EXPECT_EQ(exported.warnings, Strings());
    EXPECT_EQ(exported.dtype, DType::kBFloat16);
    for (const auto& [name, contents] : files) {
      EXPECT_EQ(ReadWholeFile(out + "/" + name, kAnySize), contents) << name;
    }
    const Json generation = Json::parse(ReadWholeFile(out + "/generation_config.json"));
    EXPECT_EQ(generation["temperature"], 0.5);
    EXPECT_EQ(IdsOf(generation["eos_token_id"]), (Ids{turn_, 3, 7}));
  }
  EXPECT_EQ(InitialEos(dir + "/imported"), (Ids{3, 7}));
  EXPECT_EQ(InitialTokenizer(dir + "/imported").name, dir + "/imported/tokenizer.json");
}

TEST_F(ExportOfTexts, AnEndOfTurnThatIsNoTokenIsNamed) {
  std::ofstream(dir_ + "/chat_template.jinja")
      << "{% for m in messages %}{{ m.role }}: {{ m.content }} (over to you)\n{% endfor %}";
  Strings warnings;
  const Json got = Exported(Run("", "chat"), "generation_config.json", &warnings);
  const Ids want = With({}, false);
  EXPECT_EQ(want.empty() ? Ids() : IdsOf(got["eos_token_id"]), want);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("answers end with `(over to you)`, which is no token"),
            std::string::npos)
      << warnings[0];
}

// --- Images ---

std::string OfImages(const std::string& keys) {
  return "model: {family: vit, image_size: 12, patch_size: 4, num_labels: 3, hidden_size: 8,\n"
         "        num_hidden_layers: 1, num_attention_heads: 1}\n"
         "data: {train: {source: images, paths: [x]" +
         keys + "}}\n" + kRest;
}

const VitConfig kVit{.image_size = 12,
                     .patch_size = 4,
                     .num_labels = 3,
                     .hidden_size = 8,
                     .intermediate_size = 32,
                     .num_hidden_layers = 1,
                     .num_attention_heads = 1,
                     .head_dim = 8};

TEST(ExportOfImages, ClassesHaveTheNamesOfTheirFolders) {
  const std::string dir = FreshDirectory("classes");
  const RegNetConfig regnet{
      .num_labels = 3, .embedding_size = 4, .hidden_sizes = {4}, .depths = {1}, .groups_width = 4};
  int count = 0;
  const auto config = [&](const ModelShape& shape, const Strings& classes,
                          const std::string& recipe = OfImages("")) {
    return Exported(Checkpoint(dir + "/" + std::to_string(count++), shape, recipe, classes),
                    "config.json");
  };
  const Strings names = {"ants", "bees", "crows \"n' \xc3\xa9"};
  for (const ModelShape& shape : {ModelShape(kVit), ModelShape(regnet)}) {
    const Json json = config(shape, names);
    for (int i = 0; i < 3; ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_EQ(json["id2label"][std::to_string(i)], names[at]);
      EXPECT_EQ(json["label2id"][names[at]], i);
    }
    EXPECT_EQ(json["label2id"].size(), 3u);
    for (const Strings& others : {Strings{}, Strings{"ants", "bees"}}) {
      EXPECT_EQ(config(shape, others)["id2label"]["2"], "LABEL_2");
    }
  }
  // The base's, where the run's files name none.
  const std::string base = dir + "/base";
  ExportCheckpoint(HoldCheckpoint(Checkpoint(dir + "/named", kVit, "", names)), base, "",
                   std::nullopt, {}, nullptr);
  EXPECT_EQ(ReadHfClasses(base), names);
  const std::string from =
      "model: {init_from: " + base + "}\ndata: {train: {source: images, paths: [x]}}\n" + kRest;
  EXPECT_EQ(config(kVit, {}, from)["id2label"]["1"], "bees");
  EXPECT_EQ(config(kVit, {"x", "y", "z"}, from)["id2label"]["1"], "y");
  std::ofstream(base + "/preprocessor_config.json") << R"({"image_mean": [0.25]})";
  ImportHf(base, dir + "/imported", nullptr);
  EXPECT_EQ(Exported(dir + "/imported", "config.json")["id2label"]["0"], "ants");
  EXPECT_EQ(Exported(dir + "/imported", "preprocessor_config.json")["image_mean"][0], 0.25);
}

TEST(ExportOfImages, TheProcessorDoesWhatEvaluationsDo) {
  const std::string dir = FreshDirectory("processor");
  int count = 0;
  const auto processor = [&](const std::string& keys, const VitConfig& vit = kVit) {
    return Exported(Checkpoint(dir + "/" + std::to_string(count++), vit, OfImages(keys)),
                    "preprocessor_config.json");
  };
  const Json square = {{"height", 12}, {"width", 12}};
  const Json plain = processor("");
  EXPECT_EQ(plain["image_processor_type"], "CLIPImageProcessor");
  EXPECT_EQ(plain["size"], square);
  EXPECT_EQ(plain["do_center_crop"], false);
  EXPECT_EQ(plain["resample"], 2);
  EXPECT_EQ(plain["rescale_factor"], 1.0 / 255);
  for (const char* key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"}) {
    EXPECT_EQ(plain[key], true) << key;
  }
  EXPECT_EQ(plain["image_mean"], Json({0.5, 0.5, 0.5}));
  const Json numbers = processor(", mean: [0.1, 0.2, 0.3], std: [0.7]");
  EXPECT_EQ(numbers["image_mean"], Json({0.1, 0.2, 0.3}));
  EXPECT_EQ(numbers["image_std"], Json({0.7, 0.7, 0.7}));
  for (const auto& [keys, edge] :
       std::vector<std::pair<std::string, int>>{{", crop: center", 12},
                                                {", crop: center, size: 14", 14},
                                                {", crop: random, size: 20", 20},
                                                {", crop: random_resized", 12}}) {
    const Json cut = processor(keys);
    EXPECT_EQ(cut["size"], Json({{"shortest_edge", edge}})) << keys;
    EXPECT_EQ(cut["do_center_crop"], true) << keys;
    EXPECT_EQ(cut["crop_size"], square) << keys;
  }
  EXPECT_TRUE(Exported(Checkpoint(dir + "/none", kVit, ""), "preprocessor_config.json").is_null());
}

}  // namespace
}  // namespace fsdp
