// Text that is trained on through a tokenizer: tokenised once, when a run first asks for it, and
// kept in a directory of the host, for the ranks beside it and for later runs.
// Tests: tests/trainer/data/text/tokenize_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_TOKEN_CACHE_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_TOKEN_CACHE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/text/tokenize.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

// The tokens of options.files, from a directory below `cache` that is named after TokensKey(): what
// tokenizer, files or column change changes it, and what is there is right: its bytes are held
// against the hashes in its tokens.json, and what does not match them is a DataError that says what
// to delete. options.directory is not read. Any number of processes may ask at once: one writes,
// the others wait; one that dies leaves what the next goes on with. `say` gets a line now and then
// of what takes long, and may be null. Throws as Tokenize() does, Error(kStopped) while waiting
// too, and CommError where who writes has done nothing for options.silence_s.
//
// The source's Files() are the text's, as stored; its Where() names a place in the cache.
std::shared_ptr<const TokenSource> OpenTextTokens(
    const std::string& cache, const std::shared_ptr<const Tokenizer>& tokenizer,
    const std::string& name, TokenizeOptions options,
    const std::function<void(const std::string&)>& say);

// A set of tokens that OpenTextTokens() keeps.
struct TokenSet {
  std::string directory;
  int64_t bytes = 0;
  int64_t tokens = 0;   // 0: not finished, or damaged.
  std::string inputs;   // "a.txt and 2 more files"; empty as above.
  bool in_use = false;  // A process writes it.
};

// The sets, by name; empty where there is no such cache. Other files are left out.
std::vector<TokenSet> ListTokenSets(const std::string& cache);

// Removes a set; returns false, and keeps it, while a process writes it. A run that trains on the
// set goes on: it has the files open. Throws DataError.
bool RemoveTokenSet(const TokenSet& kept);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_TOKEN_CACHE_H_
