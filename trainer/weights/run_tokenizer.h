// The tokenizer of the tokens that a run was trained on.
// Tests: tests/e2e/hugging_face_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {

struct Recipe;
struct SourceRecipe;

struct RunTokenizer {
  std::string name;              // For OpenTokenizer(); empty: unknown.
  std::optional<uint64_t> hash;  // Tokenizer::hash(), if the tokens' own files have it.
  std::optional<int32_t> eot;    // Ended documents, if not the tokenizer's own.
  std::string chat_template;     // The file that the run named; empty: the tokenizer's own.
};

// tokens.json beside the source's files, or in the directory that it names; empty where there is
// none that can be read.
std::optional<TokenManifest> ManifestOf(const SourceRecipe& source);

// The tokenizer that the recipe names, or else that of tokens.json beside the tokens of data.train,
// if there is one.
RunTokenizer TokenizerOfRun(const Recipe& recipe);

// Throws DataError if the tokenizer is gone, damaged, or not the one that made the tokens. The name
// must not be empty.
std::shared_ptr<const Tokenizer> OpenRunTokenizer(const RunTokenizer& tokenizer);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_
