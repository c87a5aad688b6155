#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/fuzz/data_targets.h"
#include "tests/fuzz/mutator.h"
#include "trainer/data/tokens/token_file.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

// Both outcomes must be common enough to mean something.
void Fuzz(int (*target)(const uint8_t*, size_t), Mutator mutator) {
  int accepted = 0;
  const int inputs = FuzzInputs(100'000);
  for (int i = 0; i < inputs; ++i) {
    const std::string text = mutator.Next();
    try {
      accepted += target(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    } catch (const std::exception& error) {
      FAIL() << "input " << i << ": " << error.what() << "\n" << ::testing::PrintToString(text);
    }
  }
  std::printf("%d of %d inputs accepted\n", accepted, inputs);
  EXPECT_GE(accepted, 0.01 * inputs);
  EXPECT_LE(accepted, 0.9 * inputs);
}

TEST(DataFuzz, TokenizerJson) {
  const Strings seeds = {
      R"({"added_tokens":[{"id":9,"content":"<s>","single_word":false,"lstrip":true,"rstrip":true,)"
      R"("normalized":false,"special":true}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":)"
      R"("ByteLevel","add_prefix_space":false,"use_regex":true},"post_processor":null,"decoder":)"
      R"({"type":"ByteLevel"},"model":{"type":"BPE","unk_token":null,"vocab":{"a":0,"b":1,"t":2,)"
      R"("h":3,"e":4,"ab":5,"th":6,"the":7,"abab":8},"merges":["a b","t h",["th","e"],"ab ab"]}})",
      R"({"added_tokens":[],"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend",)"
      R"("prepend":"_"},{"type":"Replace","pattern":{"String":" "},"content":"_"}]},)"
      R"("pre_tokenizer":null,"decoder":{"type":"Sequence","decoders":[{"type":"Replace",)"
      R"("pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":)"
      R"("Strip","content":" ","start":1,"stop":0}]},"model":{"type":"BPE","unk_token":"<u>",)"
      R"("byte_fallback":true,"fuse_unk":true,"vocab":{"<u>":0,"_":1,"a":2,"b":3,"_a":4,)"
      R"("<0xFF>":5,"<0x0A>":6},"merges":["_ a"]}})",
      R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
      R"("[^\\s\\p{L}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false})"
      R"(,{"type":"Digits","individual_digits":true},{"type":"Metaspace","replacement":"_",)"
      R"("prepend_scheme":"first","split":true}]},"decoder":{"type":"Metaspace","replacement":"_"},)"
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},)"
      R"({"Sequence":{"id":"A"}}]},"added_tokens":[{"id":6,"content":"[x]","single_word":true,)"
      R"("lstrip":false,"rstrip":false,"normalized":true,"special":false}],"model":{"type":"BPE",)"
      R"("ignore_merges":true,"vocab":{"<s>":0,"_":1,"e":2,"n":3,"d":4,"en":5},"merges":["e n"]}})"};
  const Strings words = {"\"type\":\"Split\"",
                         "\"behavior\":\"Removed\"",
                         "\"behavior\":\"MergedWithPrevious\"",
                         "\"behavior\":\"MergedWithNext\"",
                         "\"behavior\":\"Contiguous\"",
                         "\"invert\":true",
                         "\"Regex\":\"a*\"",
                         "\"Regex\":\"(?:)\"",
                         "\"Regex\":\"(?=b)\"",
                         "\"Regex\":\"[a-z]+?\"",
                         "\"String\":\"a\"",
                         "{\"type\":\"NFD\"}",
                         "{\"type\":\"NFKC\"}",
                         "\"content\":\"\"",
                         "\"content\":\"a\"",
                         "\\\\s",
                         "\\\\p{L}",
                         "\\\\b",
                         "(?<=a)",
                         "+",
                         "*",
                         "|",
                         "null",
                         "true",
                         "false",
                         "[]",
                         "{}",
                         "-1",
                         "4194304",
                         "\"add_prefix_space\":true",
                         "\"prepend_scheme\":\"always\"",
                         "\"byte_fallback\":true",
                         "\"a b\"",
                         "\"b a\"",
                         "[\"a\",\"b\"]",
                         "\\u0000",
                         "\\ud83d",
                         "\"vocab\":{\"a\":0}",
                         "\xc4\xa0",
                         "\xcc\x81"};
  Fuzz(FuzzTokenizerJson, {11, seeds, words, 1500});
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Npy(int major, const std::string& descr, const std::string& shape,
                const std::string& data) {
  const std::string header =
      "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string text = "\x93NUMPY";
  text += {static_cast<char>(major), '\0'};
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) {
    text += static_cast<char>(header.size() >> 8 * i);
  }
  return text + header + data;
}

TEST(DataFuzz, TokenFile) {
  const std::vector<uint16_t> narrow = {1, 2, 3, 50256};
  const std::vector<int64_t> wide = {7, 8};
  // Headers of llm.c are almost all zeros: most changes hit nothing, and are accepted.
  const Strings seeds = {LlmcHeader(TokenDType::kUint16, 4) + Bytes(narrow),
                         LlmcHeader(TokenDType::kUint32, 2) + Bytes(narrow),
                         Npy(1, "<u2", "(4,)", Bytes(narrow)),
                         Npy(2, "<i8", "(2,)", Bytes(wide)),
                         Npy(3, "<i4", "(2,)", Bytes(narrow)),
                         Npy(1, "<u4", "(2,)", Bytes(narrow))};
  const Strings words = {"<u2",
                         "<i8",
                         "<u4",
                         "(4,)",
                         "(2,)",
                         "(1,)",
                         "True",
                         "'",
                         "'shape'",
                         "(2, 2)",
                         "9223372036854775807",
                         std::string(8, '\xff'),
                         LlmcHeader(TokenDType::kUint16, 0x7fffffff).substr(0, 12)};
  Fuzz(FuzzTokenFile, {12, seeds, words, 1200});
}

TEST(DataFuzz, TokenManifest) {
  TokenManifest m;
  m.tokenizer = "gpt2/tokenizer.json";
  m.vocab_size = 50257;
  m.eot = 50256;
  m.documents = 2;
  m.tokens = 3;
  m.inputs = {{"a.txt", 12, 7}};
  m.shards = {{"0.bin", 2}, {"1.bin", 1}};
  TokenManifest bare = m;
  bare.eot.reset();
  bare.inputs.clear();
  bare.shards = {{"0.bin", 3}};
  const Strings words = {
      "\"eot\": null", "\"tokens\": 2",       "null", "[]", "{}", "true", "1.5", "-1", "\\u0000",
      "../",           "18446744073709551616"};
  Fuzz(FuzzTokenManifest, {13, {ToJson(m), ToJson(bare)}, words, 900});
}

}  // namespace
}  // namespace fsdp
