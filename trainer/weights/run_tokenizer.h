// What turned text into the tokens that a run was trained on.
// Tests: tests/e2e/hugging_face_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trainer/data/token_manifest.h"
#include "trainer/data/tokenizer.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

struct RunTokenizer {
  std::string name;              // For OpenTokenizer(); empty where nobody says.
  std::optional<uint64_t> hash;  // Tokenizer::hash(), where the tokens' own files say it.
  std::optional<int32_t> eot;    // What ended documents, where that is not the tokenizer's to say.
  std::string chat_template;     // The file of a run that named one; else the tokenizer's own.
};

// tokens.json beside the source's files, or in the directory that it names; empty where there is
// none that can be read.
std::optional<TokenManifest> ManifestOf(const SourceRecipe& source);

// As the recipe names it, or else tokens.json beside the tokens of data.train, where that is there.
RunTokenizer TokenizerOfRun(const Recipe& recipe);

// Throws DataError: gone, damaged, or another one than made the tokens. The name is not empty.
std::shared_ptr<const Tokenizer> OpenRunTokenizer(const RunTokenizer& tokenizer);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_
