// Tokens that only the files beside a tokenizer have, against the ids of transformers for the same
// folders (tools/reference/tokenizer_files.py).
#include "trainer/data/tokenizers/side_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kFixtures = "tests/fixtures/tokenizers/";

// Opens the folder that has `tokenizer` under the name `as`, and `files`.
std::shared_ptr<const Tokenizer> Open(const std::string& tokenizer, const std::string& as,
                                      const std::map<std::string, std::string>& files) {
  const fs::path folder = fs::path(::testing::TempDir()) / "side_files";
  fs::remove_all(folder);
  fs::create_directories(folder);
  fs::copy_file(kFixtures + tokenizer, folder / as);
  for (const auto& [name, text] : files) std::ofstream(folder / name) << text;
  return OpenTokenizer(folder.string());
}

std::string ErrorOf(const std::string& tokenizer, const std::string& as,
                    const std::map<std::string, std::string>& files) {
  try {
    Open(tokenizer, as, files);
  } catch (const DataError& error) {
    const std::string what = error.what();
    return what.substr(what.find(as + ": ") + as.size() + 2);
  }
  return "";
}

TEST(SideFiles, RefusesWhatCutsSpecialTokens) {
  EXPECT_EQ(ErrorOf("gpt2.json", "tokenizer.json",
                    {{"tokenizer_config.json", R"({"split_special_tokens": true})"}}),
            "tokenizer_config.json beside it, split_special_tokens: true is not supported");
  EXPECT_EQ(ErrorOf("gpt2.json", "tokenizer.json",
                    {{"tokenizer_config.json", R"({"split_special_tokens": false})"}}),
            "");
}

// Only transformers knows what its classes make of these.
TEST(SideFiles, OtherFilesHaveACure) {
  const fs::path folder = fs::path(::testing::TempDir()) / "vocab_and_merges";
  fs::create_directories(folder);
  EXPECT_EQ(HowToGetTokenizer(folder.string()), "");
  std::ofstream(folder / "vocab.json") << "{}";
  try {
    OpenTokenizer(folder.string());
    ADD_FAILURE() << "opened";
  } catch (const DataError& error) {
    const std::string dir = folder.string();
    EXPECT_EQ(error.what(),
              "tokenizer: " + dir +
                  ": holds no tokenizer.json, tokenizer.model or spiece.model, but vocab.json, "
                  "which is not read; transformers writes a tokenizer.json beside it: `python3 -c "
                  "'import sys, transformers as t; "
                  "t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' " +
                  dir + "`");
  }
}

TEST(SideFiles, TokensAreThoseOfTransformers) {
  // Files that give a token another id than transformers would.
  const std::map<std::string, std::string> kRefused = {
      {"decoder_gap",
       "tokenizer_config.json beside it, added_tokens_decoder[1006]: `<|im_start|>` has id 1006, "
       "but 1001 is the next that is free, which it would get"},
      {"decoder_clash",
       "tokenizer_config.json beside it, added_tokens_decoder[5]: `<|im_start|>` has id 5, but "
       "1001 "
       "is the next that is free, which it would get"},
      {"decoder_old_id",
       "tokenizer_config.json beside it, added_tokens_decoder[7]: `<|endoftext|>` has id 7, but "
       "1000 elsewhere"},
      {"added_file_gap",
       "added_tokens.json beside it: `<|im_start|>` has id 1004, but 1001 is the next that is "
       "free, "
       "which it would get"},
  };
  std::ifstream file(kFixtures + "side_files.json");
  Json cases = Json::parse(file);
  const std::string text = cases["text"];
  cases.erase("text");
  EXPECT_GT(cases.size(), 40u);
  size_t refused = 0;
  for (const auto& [name, want] : cases.items()) {
    SCOPED_TRACE(name);
    const std::map<std::string, std::string> files = want["files"];
    if (const auto found = kRefused.find(name); found != kRefused.end()) {
      EXPECT_EQ(ErrorOf(want["tokenizer"], want["as"], files), found->second);
      ++refused;
      continue;
    }
    const auto tokenizer = Open(want["tokenizer"], want["as"], files);
    EXPECT_EQ(Json(tokenizer->Encode(text)), want["ids"]);
    EXPECT_EQ(Json(tokenizer->EncodePlaced(text).ids), want["ids"]);
    EXPECT_EQ(tokenizer->vocab_size(), want["size"]);
    for (const auto& [token, id] : want["named"].items()) {
      EXPECT_EQ(tokenizer->IdOf(token), id.get<int32_t>()) << token;
      EXPECT_EQ(Json(tokenizer->Encode(token)).dump().find(id.dump()) != std::string::npos, true);
    }
    if (!want["eos"].is_null()) {
      EXPECT_EQ(tokenizer->eot(), want["eos"].get<int32_t>());
    }
  }
  EXPECT_EQ(refused, kRefused.size());
}

TEST(SideFiles, MistakesNameFileAndKey) {
  const auto error = [](const std::string& file, const std::string& text) {
    return ErrorOf("gpt2.json", "tokenizer.json", {{file, text}});
  };
  const std::string config = "tokenizer_config.json", map = "special_tokens_map.json";
  EXPECT_EQ(
      error(config, "{"),
      "tokenizer_config.json beside it:1:2: want a key in double quotes, got the end of the text");
  EXPECT_EQ(error(map, "[]"), "special_tokens_map.json beside it is no JSON object");
  EXPECT_EQ(error(config, R"({"eos_token": 7})"),
            "tokenizer_config.json beside it, eos_token: is neither a text nor a token");
  EXPECT_EQ(error(map, R"({"pad_token": {"lstrip": true}})"),
            "special_tokens_map.json beside it, pad_token: is neither a text nor a token");
  EXPECT_EQ(error(config, R"({"extra_special_tokens": "x"})"),
            "tokenizer_config.json beside it, extra_special_tokens: is neither a list nor a map of "
            "tokens");
  EXPECT_EQ(error(config, R"({"added_tokens_decoder": {"x": {"content": "a"}}})"),
            "tokenizer_config.json beside it, added_tokens_decoder[x]: is no id");
  EXPECT_EQ(error(config, R"({"added_tokens_decoder": {"7": "a"}})"),
            "tokenizer_config.json beside it, added_tokens_decoder[7]: is no token");
  EXPECT_EQ(error(config, R"({"additional_special_tokens": [{"content": "a", "rstrip": 1}]})"),
            "tokenizer_config.json beside it, additional_special_tokens[0]: `a`: `rstrip` is "
            "neither true nor false");
  EXPECT_EQ(error("added_tokens.json", R"({"<x>": "9"})"),
            "added_tokens.json beside it: `<x>`: is given no id");
  EXPECT_EQ(ErrorOf("t5.model", "spiece.model",
                    {{config, R"({"tokenizer_class": "T5Tokenizer", "extra_ids": -1})"}}),
            "tokenizer_config.json beside it, extra_ids: is no number from 0 to 65536");
  EXPECT_EQ(
      ErrorOf("sp_bpe.model", "spiece.model", {{config, R"({"tokenizer_class": "T5Tokenizer"})"}}),
      "is no unigram model, as T5Tokenizer needs");
}

// Tokens kept under one tokenizer's hash are not another's.
TEST(SideFiles, AreInTheHashWhereTheyAreRead) {
  const auto hash = [](const std::map<std::string, std::string>& files) {
    return Open("gpt2.json", "tokenizer.json", files)->hash();
  };
  const std::string map = "special_tokens_map.json", eos = R"({"eos_token": "<|im_end|>"})";
  EXPECT_NE(hash({}), hash({{map, eos}}));
  EXPECT_NE(hash({{map, eos}}), hash({{"tokenizer_config.json", eos}}));
  const std::string config = R"({"added_tokens_decoder": {}})";
  EXPECT_EQ(hash({{"tokenizer_config.json", config}}),
            hash({{"tokenizer_config.json", config}, {map, eos}}));
}

TEST(SideFiles, ADirectoryIsTheTokenizerInIt) {
  EXPECT_EQ(Open("gpt2.json", "tokenizer.json", {})->hash(),
            OpenTokenizer(kFixtures + "gpt2.json")->hash());
  EXPECT_EQ(Open("sp_bpe.model", "tokenizer.model", {})->hash(),
            OpenTokenizer(kFixtures + "sp_bpe.model")->hash());
  EXPECT_EQ(TokenizerFileIn(::testing::TempDir() + "/side_files"),
            ::testing::TempDir() + "/side_files/tokenizer.model");
  const std::string empty = ::testing::TempDir() + "/no_tokenizer";
  fs::create_directories(empty);
  EXPECT_EQ(TokenizerFileIn(empty), std::nullopt);
  EXPECT_THROW(OpenTokenizer(empty), DataError);
}

// A text in parts has the ids of the whole, with tokens of the files beside the tokenizer in it.
TEST(SideFiles, PartsAreTheWhole) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "some words <|im_start|>and <extra_id_1> tokens of them ";
  for (const auto& [tokenizer, as] :
       std::map<std::string, std::string>{{"gpt2.json", "tokenizer.json"},
                                          {"sp_bpe.model", "tokenizer.model"},
                                          {"uni_t5.json", "tokenizer.json"}}) {
    const auto opened =
        Open(tokenizer, as,
             {{"special_tokens_map.json", R"({"additional_special_tokens": ["<|im_start|>"]})"}});
    std::vector<int32_t> ids;
    int parts = 0;
    for (std::string_view rest = text; !rest.empty(); ++parts) {
      size_t end = 0;
      std::vector<int32_t> part;
      do {
        part.clear();
        end = opened->PartEnd(rest, end + 100);
      } while (!opened->EncodePart(rest, end, rest.size() == text.size(), part));
      ids.insert(ids.end(), part.begin(), part.end());
      rest.remove_prefix(end);
    }
    EXPECT_EQ(ids, opened->Encode(text)) << tokenizer;
    EXPECT_GT(parts, 20) << tokenizer;
  }
}

}  // namespace
}  // namespace fsdp
