// A tokenizer.json of Hugging Face (github.com/huggingface/tokenizers), read and checked: the steps
// that hf_tokenizer.cc takes.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_FILE_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_FILE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/tokenizers/added_tokens.h"
#include "trainer/data/tokenizers/bpe.h"
#include "trainer/data/tokenizers/hf_tokenizer_steps.h"
#include "trainer/data/tokenizers/side_files.h"
#include "trainer/data/tokenizers/unigram.h"

namespace fsdp {

struct HfTokenizerFile {
  struct Added {
    AddedToken token;
    bool normalized = false;  // Found in normalised text, in its own normalised form.
  };
  HfSteps steps;
  std::optional<Bpe> bpe;  // This one, or the other.
  std::optional<Unigram> unigram;
  std::vector<Added> added;
  std::map<std::string, int32_t> ids;  // Ids of all tokens, by the file's spelling.
  std::vector<std::string> pieces;     // By id, what each is decoded to.
  std::optional<int32_t> bos, eot;
  int strip = 0;  // Spaces at the start that decoding takes away.
};

// Throws DataError with `path` and the fault, or the unsupported part.
HfTokenizerFile ReadHfTokenizerFile(const std::string& path, std::string_view json,
                                    const SideFiles& beside);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_FILE_H_
