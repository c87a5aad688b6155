// The tokenizer's files in an exported directory. tools/reference/export_generate.py shows that
// transformers' AutoTokenizer makes our ids of them; here our own reader reads them back.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;
using testing::Json;

const char kFixtures[] = "tests/fixtures/tokenizers/";

// As an export writes them.
std::shared_ptr<const Tokenizer> ReadBack(const HfTokenizerFiles& files, const std::string& name) {
  const std::string dir = FreshDirectory("back");
  for (const auto& [file, contents] : files.contents) WriteAtomicFile(dir + "/" + file, contents);
  return OpenTokenizer(dir + "/" + name);
}

TEST(HfTokenizerFiles, BytesBecomeATokenizerOfTheSameIds) {
  const HfTokenizerFiles files = ReadHfTokenizerFiles("bytes", std::nullopt, 64);
  EXPECT_EQ(files.contents.size(), 2u);
  EXPECT_FALSE(files.ids.eos || files.ids.bos || files.ids.pad);
  const Json config = Json::parse(files.contents.at("tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["model_max_length"], 64);
  EXPECT_FALSE(config.contains("eos_token"));

  const auto back = ReadBack(files, "tokenizer.json");
  EXPECT_EQ(back->vocab_size(), 256);
  EXPECT_FALSE(back->eot());
  for (int32_t b = 0; b < 256; ++b) {
    const std::string byte(1, static_cast<char>(b));
    EXPECT_EQ(back->Piece(b), byte) << b;
  }
  // Every character of UTF-8 that has one of the bytes 00 to f4.
  for (uint32_t c = 1; c < 0x110000; c = c < 0x3000 ? c + 1 : c + 997) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text = "a ";
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else if (c < 0x800) {
      text += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      text += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
               static_cast<char>(0x80 | (c & 63))};
    } else {
      text += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
               static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    ASSERT_EQ(back->Encode(text), ByteTokenizer()->Encode(text)) << c;
  }
}

TEST(HfTokenizerFiles, AnEndBeyondTheBytesIsATokenOfItsOwn) {
  const HfTokenizerFiles files = ReadHfTokenizerFiles("bytes", 256, 64);
  EXPECT_EQ(files.ids.eos, 256);
  const Json config = Json::parse(files.contents.at("tokenizer_config.json"));
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  const auto back = ReadBack(files, "tokenizer.json");
  EXPECT_EQ(back->vocab_size(), 257);
  EXPECT_EQ(back->eot(), 256);
  // A byte that ends documents stays a byte: as a special token it would be found in text.
  const HfTokenizerFiles newline = ReadHfTokenizerFiles("bytes", 10, 64);
  EXPECT_EQ(newline.ids.eos, 10);
  EXPECT_FALSE(Json::parse(newline.contents.at("tokenizer_config.json")).contains("eos_token"));
  EXPECT_EQ(ReadBack(newline, "tokenizer.json")->vocab_size(), 256);
}

TEST(HfTokenizerFiles, CopiesWhatLiesThere) {
  const std::string dir = FreshDirectory("there");
  fs::copy_file(std::string(kFixtures) + "qwen2.json", dir + "/tokenizer.json");
  const std::string config =
      R"({"eos_token": {"content": "<|im_end|>"}, "bos_token": null, "pad_token": "<|endoftext|>",
          "tokenizer_class": "Qwen2Tokenizer", "model_max_length": 32768})";
  std::ofstream(dir + "/tokenizer_config.json") << config;
  std::ofstream(dir + "/chat_template.jinja") << "{{ messages }}";
  std::ofstream(dir + "/model.safetensors") << "not the tokenizer's";
  const HfTokenizerFiles files = ReadHfTokenizerFiles(dir + "/tokenizer.json", std::nullopt, 64);
  const auto tokenizer = OpenTokenizer(dir + "/tokenizer.json");
  EXPECT_EQ(files.contents.size(), 3u);
  EXPECT_EQ(files.contents.at("tokenizer.json"), ReadWholeFile(dir + "/tokenizer.json"));
  EXPECT_EQ(files.contents.at("tokenizer_config.json"), config);
  EXPECT_EQ(files.contents.at("chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(files.tokenizer_class, "Qwen2Tokenizer");
  ASSERT_TRUE(files.ids.eos && files.ids.pad);
  EXPECT_EQ(files.ids.eos, tokenizer->IdOf("<|im_end|>"));
  EXPECT_EQ(files.ids.pad, tokenizer->IdOf("<|endoftext|>"));
  EXPECT_FALSE(files.ids.bos);
  // The token that ended the documents of training counts.
  EXPECT_EQ(ReadHfTokenizerFiles(dir + "/tokenizer.json", 7, 64).ids.eos, 7);
}

// Left to itself AutoTokenizer goes by the model's family, and splits as that does.
TEST(HfTokenizerFiles, SaysHowItIsToBeLoaded) {
  const HfTokenizerFiles gpt2 =
      ReadHfTokenizerFiles(std::string(kFixtures) + "llama3.json", std::nullopt, 99);
  const Json config = Json::parse(gpt2.contents.at("tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["model_max_length"], 99);
  const auto tokenizer = OpenTokenizer(std::string(kFixtures) + "llama3.json");
  ASSERT_TRUE(gpt2.ids.bos && gpt2.ids.eos);
  EXPECT_EQ(gpt2.ids.bos, tokenizer->bos());
  EXPECT_EQ(tokenizer->IdOf(config["eos_token"].get<std::string>()), gpt2.ids.eos);
  EXPECT_EQ(tokenizer->IdOf(config["bos_token"].get<std::string>()), gpt2.ids.bos);

  const std::string model = std::string(kFixtures) + "sp_bpe.model";
  const HfTokenizerFiles sp = ReadHfTokenizerFiles(model, std::nullopt, 99);
  EXPECT_EQ(sp.contents.at("tokenizer.model"), ReadWholeFile(model));
  const Json sp_config = Json::parse(sp.contents.at("tokenizer_config.json"));
  EXPECT_EQ(sp_config["tokenizer_class"], "SentencePieceBackend");
  EXPECT_EQ(sp_config["eos_token"], "</s>");
  EXPECT_EQ(sp.ids.eos, OpenTokenizer(model)->eot());

  // T5Tokenizer looks for spiece.model. A directory stands for the tokenizer in it.
  const std::string t5 = FreshDirectory("t5");
  fs::copy_file(std::string(kFixtures) + "t5.model", t5 + "/spiece.model");
  std::ofstream(t5 + "/config.json") << R"({"model_type": "t5"})";
  const HfTokenizerFiles spiece = ReadHfTokenizerFiles(t5, std::nullopt, 99);
  EXPECT_EQ(spiece.contents.at("spiece.model"), ReadWholeFile(t5 + "/spiece.model"));
  EXPECT_EQ(spiece.tokenizer_class, "T5Tokenizer");
  EXPECT_EQ(spiece.ids.eos, 1);

  // A class that is missing is added, and all else stays.
  const std::string dir = FreshDirectory("half");
  fs::copy_file(std::string(kFixtures) + "gpt2.json", dir + "/tokenizer.json");
  std::ofstream(dir + "/tokenizer_config.json") << R"({"add_prefix_space": true})";
  const HfTokenizerFiles half = ReadHfTokenizerFiles(dir + "/tokenizer.json", std::nullopt, 64);
  EXPECT_EQ(Json::parse(half.contents.at("tokenizer_config.json")),
            Json({{"add_prefix_space", true}, {"tokenizer_class", "PreTrainedTokenizerFast"}}));
}

// special_tokens_map.json comes first, where tokenizer_config.json lists no tokens.
TEST(HfTokenizerFiles, NamesTheTokensThatTheReaderFinds) {
  const std::string dir = FreshDirectory("named");
  fs::copy_file(std::string(kFixtures) + "qwen2.json", dir + "/tokenizer.json");
  std::ofstream(dir + "/special_tokens_map.json") << R"({"pad_token": "<|im_end|>"})";
  const auto pad = [&](const std::string& config) {
    std::ofstream(dir + "/tokenizer_config.json") << config;
    return ReadHfTokenizerFiles(dir + "/tokenizer.json", std::nullopt, 64).ids.pad;
  };
  EXPECT_EQ(pad(R"({"pad_token": "<|endoftext|>"})"), 1002);
  EXPECT_EQ(pad(R"({"pad_token": "<|endoftext|>", "added_tokens_decoder": {}})"), 1000);
  EXPECT_EQ(pad("{}"), 1002);
}

TEST(HfTokenizerFiles, FilesThatAreGoneAreADataError) {
  EXPECT_THROW(ReadHfTokenizerFiles("not_there/tokenizer.json", std::nullopt, 64), DataError);
  const std::string dir = FreshDirectory("damaged");
  std::ofstream(dir + "/tokenizer.json") << "{";
  EXPECT_THROW(ReadHfTokenizerFiles(dir + "/tokenizer.json", std::nullopt, 64), DataError);
}

}  // namespace
}  // namespace fsdp
