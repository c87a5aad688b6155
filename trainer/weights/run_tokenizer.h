// The tokenizer of the tokens that a run was trained on.
// Tests: tests/e2e/hugging_face_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokens/token_manifest.h"
#include "trainer/weights/hf_config.h"

namespace fsdp {

struct Recipe;
struct SourceRecipe;

struct RunTokenizer {
  std::string name;              // For OpenTokenizer(); empty: unknown.
  std::optional<uint64_t> hash;  // Tokenizer::hash(), if the tokens' own files have it.
  std::optional<int32_t> eot;    // Ended documents, if not the tokenizer's own.
  std::string chat_template;     // The file that the run named; empty: the tokenizer's own.
  bool chats = false;            // The run learnt conversations, written out by the template.
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

// The tokenizer of a Hugging Face directory: files from which transformers' AutoTokenizer makes our
// ids, and the tokens that configurations name.

struct HfTokenizerFiles {
  std::map<std::string, std::string> contents;  // By the name of the file.
  HfTokenIds ids;
  std::string tokenizer_class;  // The one that tokenizer_config.json names.
};

// The files of the tokenizer `name` (OpenTokenizer). A tokenizer.json or a SentencePiece model is
// copied, with the files beside it under the names that transformers gives; `bytes` becomes a
// tokenizer.json of 256 tokens. Adds a tokenizer_config.json where no file says how transformers is
// to load the tokenizer. `eot`: the token that ended documents in training, where it was not the
// tokenizer's own. `positions`: the longest sequence, for tokenizer_config.json. `chat_template`:
// the file of a template that is not the tokenizer's own, or "". Throws DataError where a file
// is gone or damaged.
HfTokenizerFiles ReadHfTokenizerFiles(const std::string& name, std::optional<int32_t> eot,
                                      int64_t positions, const std::string& chat_template = "");

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_RUN_TOKENIZER_H_
