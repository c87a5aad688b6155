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
#include "trainer/data/tokenizers/regex.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {

struct HfNormalizer {
  enum class Kind { kForm, kPrepend, kReplace };
  Kind kind;
  NormalForm form = NormalForm::kNfc;
  std::string content = {};         // kPrepend, kReplace.
  std::optional<Regex> regex = {};  // kReplace.
};

struct HfSplitter {
  enum class Kind { kSplit, kPrefixSpace, kMetaspace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  Kind kind;
  std::optional<Regex> regex = {};  // kSplit; kMetaspace that splits.
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
  std::string replacement = {};  // kMetaspace.
  Prepend prepend = Prepend::kNever;
};

struct HfTokenizerFile {
  struct Added {
    AddedToken token;
    bool normalized = false;  // Found in normalised text, in its own normalised form.
  };
  std::vector<HfNormalizer> normalizers;
  std::vector<HfSplitter> splitters;  // In this order.
  std::optional<Bpe> bpe;             // There is always one.
  std::vector<Added> added;
  std::map<std::string, int32_t> ids;  // Ids of all tokens, by the file's spelling.
  std::vector<std::string> pieces;     // By id, what each is decoded to.
  std::optional<int32_t> bos, eot;
  int strip = 0;             // Spaces at the start that decoding takes away.
  bool needs_space = false;  // A part must begin with a space, or it would get one.
  bool whole = false;        // Documents cannot be encoded in parts.
};

// `config`: tokenizer_config.json beside it, may be empty. Throws DataError with `path` and the
// fault, or the unsupported part.
HfTokenizerFile ReadHfTokenizerFile(const std::string& path, std::string_view json,
                                    std::string_view config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_FILE_H_
