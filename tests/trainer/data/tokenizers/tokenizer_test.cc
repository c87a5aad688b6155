// Every tokenizer of tests/fixtures/tokenizers against what the libraries they are from make of a
// megabyte of hard text (tools/reference/README.md), and what the interface promises.
#include "trainer/data/tokenizers/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/testing/hard_text.h"
#include "trainer/core/errors.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

const std::string kFolder = "tests/fixtures/tokenizers/";

const std::string& Text() {
  static const std::string text = testing::HardText(2, 1'000'000);
  return text;
}

uint64_t Fnv(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001B3;
  return hash;
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

nlohmann::json Expected() {
  std::ifstream file(kFolder + "expected.json");
  return nlohmann::json::parse(file);
}

// Hashes of the first 1024, then of twice as many, ...
void ExpectHashes(const std::vector<int32_t>& values, const nlohmann::json& hashes) {
  size_t n = 1024;
  for (const std::string hash : hashes) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                 std::min(n, values.size()) * sizeof(int32_t));
    ASSERT_EQ(Hex(Fnv(bytes)), hash) << "among the first " << n << ", not before half of them";
    n *= 2;
  }
}

TEST(HardText, IsThatOfTheReference) {
  const auto want = Expected()["text"];
  EXPECT_EQ(Text().size(), want["bytes"]);
  EXPECT_EQ(Hex(Fnv(Text())), want["hash"]);
}

class TokenizerTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = OpenTokenizer(kFolder + GetParam());
};

TEST_P(TokenizerTest, IdsAreThoseOfTheLibrary) {
  const std::vector<int32_t> ids = tokenizer_->Encode(Text());
  const auto want = Expected()[GetParam()];
  EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + 64), want["first"]);
  EXPECT_EQ(ids.size(), want["ids"]);
  ExpectHashes(ids, want["hashes"]);
  for (const int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer_->vocab_size());
}

// Splitters that no tokenizer of the folder has: tools/reference/tokenizer_files.py.
TEST(Tokenizer, SplittersAreThoseOfTheLibrary) {
  std::ifstream file(kFolder + "splits.json");
  const auto cases = nlohmann::json::parse(file);
  EXPECT_GT(cases.size(), 8u);
  nlohmann::json tokenizer = nlohmann::json::parse(std::ifstream(kFolder + "gpt2.json"));
  const std::string path = ::testing::TempDir() + "splitters.json";
  const std::string raw = testing::HardText(3, 60'000);
  for (const auto& [name, want] : cases.items()) {
    SCOPED_TRACE(name);
    tokenizer["pre_tokenizer"] = want["pre_tokenizer"];
    std::ofstream(path) << tokenizer;
    const auto ours = OpenTokenizer(path);
    std::vector<int32_t> ids;
    std::string buffer;
    for (size_t at = 0; at < raw.size(); at += 300) {
      const auto some = ours->Encode(WellFormed(std::string_view(raw).substr(at, 300), buffer));
      ids.insert(ids.end(), some.begin(), some.end());
    }
    EXPECT_EQ(ids.size(), want["ids"]);
    EXPECT_EQ(Hex(Fnv({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)})),
              want["hash"]);
    // In parts as in one, with places.
    const PlacedIds placed = ours->EncodePlaced(WellFormed(raw, buffer));
    EXPECT_EQ(placed.ids, ours->Encode(raw));
    EXPECT_TRUE(std::is_sorted(placed.begins.begin(), placed.begins.end()));
  }
}

// For each byte of well-formed `text` the one where its character, or what that is a mark of,
// begins: as in tools/reference/tokenizer_fixtures.py.
std::vector<int32_t> Bases(std::string_view text) {
  const auto is_mark = [](uint32_t c) {
    return (c >= 0x300 && c <= 0x36f) || (c >= 0x610 && c <= 0x65f) ||
           (c >= 0x1160 && c <= 0x11ff) || (c >= 0x20d0 && c <= 0x20ff) ||
           (c >= 0xfe00 && c <= 0xfe0f);
  };
  std::vector<int32_t> bases;
  for (size_t at = 0, base = 0; at < text.size();) {
    const CodePoint c = FirstCodePoint(text.substr(at));
    if (at == 0 || !is_mark(c.value)) base = at;
    bases.insert(bases.end(), c.bytes, static_cast<int32_t>(base));
    at += c.bytes;
  }
  return bases;
}

TEST_P(TokenizerTest, BeginsAreThoseOfTheLibrary) {
  std::string buffer;
  const std::string_view text = WellFormed(Text(), buffer);
  const std::vector<int32_t> bases = Bases(text);
  const PlacedIds placed = tokenizer_->EncodePlaced(text);
  EXPECT_EQ(placed.ids, tokenizer_->Encode(text));
  ASSERT_EQ(placed.begins.size(), placed.ids.size());
  EXPECT_TRUE(std::is_sorted(placed.begins.begin(), placed.begins.end()));
  std::vector<int32_t> begins;
  for (const size_t begin : placed.begins) begins.push_back(bases.at(begin));
  ExpectHashes(begins, Expected()[GetParam()]["begins"]);
}

TEST_P(TokenizerTest, DecodesAsTheLibraryDoes) {
  const std::string text = tokenizer_->Decode(tokenizer_->Encode(Text()));
  std::string buffer;
  EXPECT_EQ(Hex(Fnv(WellFormed(text, buffer))), Expected()[GetParam()]["decoded"]);
}

TEST_P(TokenizerTest, PartsAreTheWhole) {
  // Plain words between the hard stretches, so that there is somewhere to part.
  std::string text;
  for (size_t at = 0; at < 200'000; at += 400) {
    text += Text().substr(at, 400) + " some plain words to part between and on ";
  }
  const std::vector<int32_t> whole = tokenizer_->Encode(text);
  for (const size_t target : {50u, 1000u, 20000u}) {
    std::vector<int32_t> ids, part;
    int parts = 0, refused = 0;
    std::string_view rest = text;
    size_t end = 0;
    while (!rest.empty()) {
      const size_t next = tokenizer_->PartEnd(rest, end + target);
      ASSERT_GT(next, end);
      end = next;
      part.clear();
      if (!tokenizer_->EncodePart(rest, end, rest.size() == text.size(), part)) {
        ++refused;
        continue;
      }
      ids.insert(ids.end(), part.begin(), part.end());
      rest.remove_prefix(end);
      end = 0;
      ++parts;
    }
    if (std::string(GetParam()) == "sp_unigram.model") {
      // "bb" "b" and "b" "bb" are worth the same; which it is, the rounding of a sum decides that
      // begins where the text does: see sentencepiece_tokenizer.h.
      EXPECT_NEAR(std::ssize(ids), std::ssize(whole), 1e-4 * std::ssize(whole));
      EXPECT_EQ(tokenizer_->Decode(ids), tokenizer_->Decode(whole));
    } else {
      EXPECT_EQ(ids, whole);
    }
    const std::set<std::string> kOneWord = {"llama2.json", "stripped.json", "uni_spm.json",
                                            "uni_bytes.json", "uni_never.json"};
    if (kOneWord.count(GetParam()) > 0) {
      EXPECT_EQ(parts, 1);
    } else {
      EXPECT_GT(parts, static_cast<int>(text.size() / (target + 1000)) / 2);
      EXPECT_LT(refused, parts / 3 + 1);
    }
  }
}

TEST_P(TokenizerTest, ThreadsDoNotMind) {
  const std::string text = Text().substr(0, 30'000);
  const std::vector<int32_t> want = tokenizer_->Encode(text);
  std::vector<std::vector<int32_t>> got(4);
  {
    std::vector<std::jthread> threads;
    for (auto& ids : got) {
      threads.emplace_back([&] {
        ids = tokenizer_->Encode(text);
        ids = tokenizer_->Encode(text);
      });
    }
  }
  for (const auto& ids : got) EXPECT_EQ(ids, want);
}

TEST_P(TokenizerTest, AStreamNeverShowsAPartOfACharacter) {
  const std::string text = Text().substr(0, 50'000);
  const std::vector<int32_t> ids = tokenizer_->Encode(text);
  TextStream stream(*tokenizer_);
  std::string all, raw, buffer;
  int strip = tokenizer_->LeadingSpaces();
  for (const int32_t id : ids) {
    std::string_view piece = tokenizer_->Piece(id);
    if (strip > 0 && !piece.empty()) {
      if (piece.starts_with(' ')) piece.remove_prefix(1);
      strip = 0;
    }
    raw += piece;
    const std::string shown = stream.Add(id);
    // The text was well-formed, so what is shown is, piece by piece.
    ASSERT_EQ(WellFormed(shown, buffer).data(), shown.data()) << all.size();
    all += shown;
  }
  all += stream.Finish();
  EXPECT_EQ(all, raw);
}

TEST_P(TokenizerTest, EmptyTextHasNoIds) {
  EXPECT_TRUE(tokenizer_->Encode("").empty());
  EXPECT_EQ(tokenizer_->Decode({}), "");
  EXPECT_THROW(tokenizer_->Piece(-1), std::invalid_argument);
  EXPECT_THROW(tokenizer_->Piece(tokenizer_->vocab_size()), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Every, TokenizerTest,
                         ::testing::Values("gpt2.json", "prefix_space.json", "llama3.json",
                                           "qwen2.json", "llama2.json", "parts.json",
                                           "stripped.json", "uni_t5.json", "uni_spm.json",
                                           "uni_bytes.json", "uni_some.json", "uni_never.json",
                                           "sp_bpe.model", "sp_unigram.model"),
                         [](const auto& info) {
                           std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(Tokenizer, EndsAndBeginnings) {
  const auto open = [](const char* name) { return OpenTokenizer(kFolder + name); };
  const auto name_of = [](const Tokenizer& t, std::optional<int32_t> id) {
    return id ? std::string(t.Piece(*id)) : "none";
  };
  const auto gpt2 = open("gpt2.json"), llama3 = open("llama3.json"), sp = open("sp_bpe.model");
  EXPECT_EQ(name_of(*gpt2, gpt2->eot()), "<|endoftext|>");
  EXPECT_EQ(name_of(*gpt2, gpt2->bos()), "none");
  EXPECT_EQ(name_of(*llama3, llama3->eot()), "<|end_of_text|>");
  EXPECT_EQ(name_of(*llama3, llama3->bos()), "<|begin_of_text|>");
  EXPECT_EQ(sp->eot(), 2);
  EXPECT_EQ(sp->bos(), std::nullopt);
  EXPECT_NE(gpt2->hash(), llama3->hash());
  EXPECT_EQ(open("gpt2.json")->hash(), gpt2->hash());
}

// The ids of a model's pieces may have gaps, and a vocabulary may be larger than its tokenizer.
TEST(Tokenizer, LacksTheIdsThatNoPieceHas) {
  std::ifstream file(kFolder + "gpt2.json");
  nlohmann::json json = nlohmann::json::parse(file);
  const auto opened = [&] {
    const std::string path = ::testing::TempDir() + "/gaps.json";
    std::ofstream(path) << json;
    return OpenTokenizer(path);
  };
  const auto whole = opened();
  const int32_t size = whole->vocab_size();
  EXPECT_TRUE(whole->Lacks(size).empty());
  EXPECT_EQ(whole->Lacks(size + 1), (std::vector<int32_t>{size}));
  const int32_t moved = size - 2;  // The last one before <|endoftext|>.
  json["model"]["vocab"][whole->Piece(moved)] = size + 2;
  const auto gaps = opened();
  EXPECT_EQ(gaps->vocab_size(), size + 3);
  EXPECT_EQ(gaps->Lacks(size + 4), (std::vector<int32_t>{moved, size, size + 1, size + 3}));
}

// As the library does, which puts merges into a map.
TEST(Tokenizer, APairGivenTwiceHasItsLastRank) {
  std::ifstream file(kFolder + "gpt2.json");
  const nlohmann::json given = nlohmann::json::parse(file);
  const auto ids = [](const nlohmann::json& json) {
    const std::string path = ::testing::TempDir() + "/twice.json";
    std::ofstream(path) << json;
    return OpenTokenizer(path)->Encode(Text().substr(0, 20'000));
  };
  nlohmann::json twice = given, moved = given;
  const nlohmann::json first = given["model"]["merges"][0];
  twice["model"]["merges"].push_back(first);
  moved["model"]["merges"].erase(0);
  moved["model"]["merges"].push_back(first);
  EXPECT_EQ(ids(twice), ids(moved));
  EXPECT_NE(ids(twice), ids(given));
}

TEST(Tokenizer, TheConfigBesideASentencePieceModelAsksForItsBeginning) {
  const std::string folder = ::testing::TempDir() + "/sentencepiece";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kFolder + "sp_bpe.model", folder + "/tokenizer.model",
                             std::filesystem::copy_options::overwrite_existing);
  const auto open = [&](const std::string& config) {
    std::ofstream(folder + "/tokenizer_config.json") << config;
    return OpenTokenizer(folder + "/tokenizer.model");
  };
  const auto asked = open(R"({"add_bos_token": true})"), not_asked = open("{}");
  EXPECT_EQ(asked->bos(), 1);
  EXPECT_EQ(open(R"({"add_bos_token": false})")->bos(), std::nullopt);
  EXPECT_EQ(not_asked->bos(), std::nullopt);
  EXPECT_NE(asked->hash(), not_asked->hash());  // Tokens made with the one are not the other's.
  EXPECT_THROW(open("[]"), DataError);
}

TEST(Tokenizer, BytesAreBytes) {
  const auto bytes = OpenTokenizer("bytes");
  const std::string text("a\0\xff\xc3", 4);
  EXPECT_EQ(bytes->Encode(text), (std::vector<int32_t>{'a', 0, 255, 0xc3}));
  EXPECT_EQ(bytes->Decode(bytes->Encode(text)), text);
  EXPECT_EQ(bytes->vocab_size(), kByteVocabSize);
  EXPECT_EQ(bytes->eot(), std::nullopt);
  EXPECT_THROW(bytes->Piece(256), std::invalid_argument);
  // A character that comes in two bytes is shown with its second.
  TextStream stream(*bytes);
  EXPECT_EQ(stream.Add('x'), "x");
  EXPECT_EQ(stream.Add(0xe2), "");
  EXPECT_EQ(stream.Add(0x82), "");
  EXPECT_EQ(stream.Add(0xac), "\xe2\x82\xac");
  EXPECT_EQ(stream.Add(0xf0), "");
  EXPECT_EQ(stream.Add('y'), "\xf0y");  // It cannot become a character any more.
  EXPECT_EQ(stream.Add(0x80), "\x80");
  EXPECT_EQ(stream.Add(0xed), "");
  EXPECT_EQ(stream.Add(0xa0), "\xed\xa0");  // Half a surrogate is none.
  EXPECT_EQ(stream.Add(0xe2), "");
  EXPECT_EQ(stream.Finish(), "\xe2");
}

// tokenizer.json with one thing changed.
class RefusalTest : public ::testing::Test {
 protected:
  std::string ErrorOf(const std::function<void(nlohmann::json&)>& change) {
    std::ifstream file(kFolder + "gpt2.json");
    nlohmann::json json = nlohmann::json::parse(file);
    change(json);
    return ErrorOf(json.dump());
  }
  std::string ErrorOf(const std::string& contents, const std::string& config = "") {
    const std::string folder = ::testing::TempDir();
    const std::string path = folder + "/tokenizer.json";
    std::ofstream(path, std::ios::binary) << contents;
    std::remove((folder + "/tokenizer_config.json").c_str());
    if (!config.empty()) std::ofstream(folder + "/tokenizer_config.json") << config;
    try {
      eot_ = OpenTokenizer(path)->eot();
    } catch (const DataError& error) {
      std::string what = error.what();
      const std::string start = "tokenizer: " + path + ":";
      EXPECT_EQ(what.rfind(start, 0), 0u) << what;
      what = what.substr(std::min(start.size(), what.size()));
      return what.starts_with(' ') ? what.substr(1) : what;
    }
    return "no error";
  }
  std::optional<int32_t> eot_;
};

TEST_F(RefusalTest, WhatIsNotSupportedIsNamed) {
  using J = nlohmann::json;
  EXPECT_EQ(ErrorOf([](J&) {}), "no error");
  EXPECT_EQ(ErrorOf([](J& j) { j["model"]["type"] = "WordPiece"; }),
            "model `WordPiece` is not supported");
  EXPECT_EQ(ErrorOf([](J& j) {
              j["normalizer"] = {{"type", "Lowercase"}};
            }),
            "normalizer `Lowercase` is not supported");
  EXPECT_EQ(ErrorOf([](J& j) {
              j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
            }),
            "pre_tokenizer `BertPreTokenizer` is not supported");
  EXPECT_EQ(ErrorOf([](J& j) {
              j["decoder"] = {{"type", "CTC"}};
            }),
            "decoder `CTC` is not supported");
  EXPECT_EQ(ErrorOf([](J& j) {
              j["post_processor"] = {{"type", "BertProcessing"}};
            }),
            "post_processor `BertProcessing` is not supported");
  EXPECT_EQ(ErrorOf([](J& j) { j["model"]["dropout"] = 0.1; }), "model.dropout is not supported");
  EXPECT_EQ(ErrorOf([](J& j) { j["model"]["end_of_word_suffix"] = "</w>"; }),
            "model.end_of_word_suffix is not supported");
  const auto split = [](const std::string& pattern) {
    return [=](J& j) {
      j["pre_tokenizer"] = {{"type", "Split"},
                            {"pattern", {{"Regex", pattern}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
    };
  };
  EXPECT_EQ(ErrorOf(split("(a)\\1")),
            "pre_tokenizer: the pattern (a)\\1: \\1 at byte 3 is not supported");
  EXPECT_EQ(ErrorOf(split("a(")), "pre_tokenizer: the pattern a(: missing closing parenthesis");
  const auto charsmap = [](const std::string& text) {
    return [=](J& j) {
      j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", text}};
    };
  };
  EXPECT_EQ(ErrorOf(charsmap("?")), "normalizer.precompiled_charsmap is no base64");
  EXPECT_EQ(ErrorOf(charsmap("/wAAAA==")), "normalizer.precompiled_charsmap is cut");
  const auto pieces = [](const char* text, double score) {
    return J::array({J::array({text, score})});
  };
  const auto unigram = [](const J& vocab, const J& unk) {
    return [=](J& j) { j["model"] = {{"type", "Unigram"}, {"vocab", vocab}, {"unk_id", unk}}; };
  };
  EXPECT_EQ(ErrorOf(unigram(pieces("a", -1.5), 0)),
            "model `Unigram` behind `ByteLevel` is not supported");
  EXPECT_EQ(ErrorOf(unigram(J::array({"a"}), 0)), "model.vocab[0] is no piece with a score");
  EXPECT_EQ(ErrorOf(unigram(J::array(), 0)), "model.vocab is empty");
  EXPECT_EQ(ErrorOf(unigram(pieces("a", 0), 1)), "model.unk_id is no id from 0 to 0");
  EXPECT_EQ(ErrorOf(unigram(pieces("a", 0), nullptr)),
            "model.unk_id is not given, and that is not supported");
  EXPECT_EQ(ErrorOf([](J& j) {
              j["pre_tokenizer"] = {
                  {"type", "Sequence"},
                  {"pretokenizers",
                   {{{"type", "ByteLevel"}}, {{"type", "Metaspace"}, {"replacement", "_"}}}}};
            }),
            "pre_tokenizer: `Metaspace` behind `ByteLevel` is not supported");
}

TEST_F(RefusalTest, WhatIsDamagedIsNamed) {
  using J = nlohmann::json;
  EXPECT_EQ(ErrorOf("{\"model\": "), "1:11: want a value, got the end of the text");
  EXPECT_EQ(ErrorOf("{}"), "the file has no `model`");
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_EQ(ErrorOf(R"({"model": {"vocab": {"a": 0}, "merges": [)" + deep + "]}}"),
            "the file is nested more than 100 deep");
  EXPECT_EQ(
      ErrorOf("no model at all").rfind("neither a tokenizer.json nor a SentencePiece model", 0),
      0u);
  EXPECT_EQ(ErrorOf([](J& j) { j["model"]["vocab"]["a"] = -1; }),
            "model.vocab[`a`] is no id from 0 to 4194303");
  EXPECT_EQ(ErrorOf([](J& j) { j["model"]["vocab"]["a"] = 1 << 22; }),
            "model.vocab[`a`] is no id from 0 to 4194303");
  EXPECT_EQ(ErrorOf([](J& j) { j["model"]["merges"][0] = "ab"; }), "model.merges: `ab` is no pair");
  EXPECT_EQ(ErrorOf([](J& j) {
              j["model"]["merges"][3] = {"q", "qqq"};
            }),
            "model: merge 3 is of or into something that is no token");
  EXPECT_EQ(ErrorOf([](J& j) { j["model"]["merges"][0] = 7; }), "model.merges: 7 is no pair");
  EXPECT_EQ(ErrorOf([](J& j) { j["model"]["unk_token"] = "<unk>"; }),
            "model.unk_token `<unk>` is no token");
  EXPECT_EQ(ErrorOf([](J& j) { j["added_tokens"][0]["content"] = "a"; }),
            "added_tokens: `a` has id 1000, but 64 elsewhere");
  EXPECT_EQ(ErrorOf([](J& j) { j["added_tokens"][0].erase("content"); }),
            "added_tokens has no `content`");
}

TEST_F(RefusalTest, TheConfigBesideItNamesTheEnd) {
  std::ifstream file(kFolder + "qwen2.json");
  const std::string json(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(ErrorOf(json), "no error");
  EXPECT_EQ(eot_, 1000);
  EXPECT_EQ(ErrorOf(json, R"({"eos_token": "<|im_end|>"})"), "no error");
  EXPECT_EQ(eot_, 1002);
  EXPECT_EQ(ErrorOf(json, R"({"eos_token": {"content": "<|im_start|>"}})"), "no error");
  EXPECT_EQ(eot_, 1001);
  EXPECT_EQ(ErrorOf(json, R"({"eos_token": "<eos>"})"), "no error");  // transformers adds it.
  EXPECT_EQ(eot_, 1004);
  EXPECT_EQ(
      ErrorOf(json, "{"),
      "tokenizer_config.json beside it:1:2: want a key in double quotes, got the end of the text");
}

// Cut anywhere, the stretches' counts add up to the U+FFFD that the whole gets.
TEST(CountIllFormed, AddsUpOverStretchesOfAnyLength) {
  const std::vector<std::string> parts = {
      "a",        "\xc3\xa9",     "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\x80",    "\xff",
      "\xe2\x82", "\xf0\x9f\x98", "\xc3",         "\xed\xa0\x80",     "\xf0\x90"};
  std::mt19937_64 random(8);
  std::string buffer;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t n = random() % 30; text.size() < n;) text += parts[random() % parts.size()];
    const std::string_view fixed = WellFormed(text, buffer);
    int64_t want = 0;
    for (size_t at = 0; (at = fixed.find("\xef\xbf\xbd", at)) != std::string_view::npos; ++at)
      ++want;
    const IllFormed whole = CountIllFormed(text, 0, text.size());
    ASSERT_EQ(whole.count, want);
    if (want > 0) {
      ASSERT_EQ(WellFormed(text.substr(0, whole.first), buffer), text.substr(0, whole.first));
    }
    int64_t sum = 0;
    for (size_t begin = 0, end; begin < text.size(); begin = end) {
      end = std::min(text.size(), begin + 1 + random() % 5);
      const IllFormed part = CountIllFormed(text, begin, end);
      if (sum == 0 && part.count > 0) {
        ASSERT_EQ(part.first, whole.first);
      }
      sum += part.count;
    }
    ASSERT_EQ(sum, want) << ::testing::PrintToString(text);
  }
}

TEST(WellFormed, ReplacesAsPythonDoes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      // bytes.decode("utf-8", "replace") of Python 3.11, "?" for U+FFFD.
      {"plain", "plain"},
      {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
      {"\xf0\x90(", "?("},
      {"\xed\xa0\x80", "???"},
      {"\xc0\x80", "??"},
      {"\xe0\x80\x80", "???"},
      {"\xf4\x90\x80\x80", "????"},
      {"\xe2\x82", "?"},
      {"\xf0\x9f\x98", "?"},
      {"\xf0\x9f\x98\xf0\x9f", "??"},
      {"\xff\xfe"
       "a",
       "??a"},
      {"\x80\x80", "??"},
      {"\xc3\xc3\xa9", "?\xc3\xa9"},
      {"12345678\xe2\x28\xa1", "12345678?(?"},
  };
  for (const auto& [bytes, want] : cases) {
    std::string buffer, marks;
    std::string_view got = WellFormed(bytes, buffer);
    while (!got.empty()) {
      const CodePoint c = FirstCodePoint(got);
      marks += c.value == 0xfffd ? "?" : std::string(got.substr(0, c.bytes));
      got.remove_prefix(c.bytes);
    }
    EXPECT_EQ(marks, want);
  }
}

}  // namespace
}  // namespace fsdp
