// tokens.json, beside the shards that `fsdp-train tokenize` writes: their origin and contents. It
// is written last, so a directory without it holds no finished set.
// Tests: tests/trainer/data/tokens/token_file_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_MANIFEST_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/data_files.h"

namespace fsdp {

inline constexpr const char* kTokenManifest = "tokens.json";

struct TokenManifest {
  struct Shard {
    std::string file;  // Beside the manifest.
    int64_t tokens = 0;
    uint64_t hash = 0;  // The file's, as in DescribeFile().
    bool operator==(const Shard&) const = default;
  };

  uint64_t key = 0;             // TokensKey() (tokenize.h): of all that determines the tokens.
  std::string tokenizer;        // As named on the command line.
  uint64_t tokenizer_hash = 0;  // Tokenizer::hash().
  int32_t vocab_size = 0;       // Ids are below it.
  std::optional<int32_t> eot;   // Ends every document.
  int64_t documents = 0, tokens = 0;
  int64_t empty_documents = 0;     // Left out.
  int64_t invalid_utf8 = 0;        // U+FFFD that stand for ill-formed text (unicode.h).
  std::string first_invalid_utf8;  // "a.txt, byte 17"; empty where there is none.
  std::string too_invalid_utf8;    // TooInvalid::refusal (text_check.h) of the first that is.
  std::string read_as;             // SampleFile::read_as().
  std::vector<DataFile> inputs;
  std::vector<Shard> shards;  // In order.

  bool operator==(const TokenManifest&) const = default;
};

std::string ToJson(const TokenManifest& manifest);

// Empty where `directory` has none. Throws DataError that names the file for one that cannot be
// read, that is no manifest or that contradicts itself.
std::optional<TokenManifest> ReadTokenManifest(const std::string& directory);
// `path`: for messages.
TokenManifest ParseTokenManifest(const std::string& path, const std::string& text);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_MANIFEST_H_
