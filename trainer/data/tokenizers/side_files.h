// The files beside a tokenizer's own that name further tokens, and what each token is for, as
// transformers 5.23 reads them (tokenization_utils_base.py, tokenization_utils_tokenizers.py).
//
//   tokenizer_config.json    added_tokens_decoder, additional_special_tokens, extra_special_tokens
//                            (a list or a map), eos_token and every other key that ends in _token
//   special_tokens_map.json  The same but for the first. It comes before tokenizer_config.json, and
//                            is read only where that has no added_tokens_decoder.
//   added_tokens.json        Ids by token; read in the same case.
//
// transformers goes by no id of these files: a token has the id that the tokenizer gives it, or
// the next free one. Files that say otherwise are refused.
// Tests: tests/trainer/data/tokenizers/side_files_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SIDE_FILES_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SIDE_FILES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/json_tree.h"
#include "trainer/data/tokenizers/added_tokens.h"

namespace fsdp {

// Their contents; empty where there is none.
struct SideFiles {
  std::string_view config = {}, special_tokens_map = {}, added_tokens = {};

  // Goes on with the hash of the tokenizer's own file, over those that are read.
  uint64_t Hash(uint64_t tokenizer) const;
};

struct SideToken {
  AddedToken token;         // Its id is -1 where no file gives one.
  bool normalized = false;  // Found in normalised text.
  std::string place;        // For messages: its file, key and text.
};

struct SideTokens {
  std::vector<SideToken> tokens;             // In the order in which they are added.
  std::map<std::string, std::string> named;  // "eos_token" and the like: the token's text.
  JsonTree config;                           // tokenizer_config.json, or an empty object.
};

// `path`: the tokenizer's own file, for messages. `own`: tokens that it adds itself; another
// mention of one without flags changes nothing. Throws DataError.
SideTokens ReadSideTokens(const std::string& path, const SideFiles& files,
                          const std::set<std::string>& own);

// The id of a token that is added: `known`, the one it has, or else `next`. Throws DataError where
// its file gives another.
int32_t IdOfAdded(const std::string& path, const SideToken& token, std::optional<int32_t> known,
                  int32_t next);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SIDE_FILES_H_
