// From files of text to shards of tokens, on all cores.
//
// A file is one document; of JSON (text_format.h) each object is one, whose text is in one field.
// Documents come one after the other, in the order of the files, each with the tokenizer's bos
// before it, where it has one, and the eot behind it. Empty ones leave nothing, and text that is no
// UTF-8 is read as tokenizer.h says; both are counted.
//
// The directory gets tokens_00000.bin, ... (llm.c's format: uint16, or uint32 for a vocabulary
// above 65536), each but the last of shard_tokens tokens, and, when all is there, tokens.json. The
// bytes depend on tokenizer, files and options alone, not on threads or on how often it was
// stopped: progress.json says where the next shard begins. A shard, and the set, is whole or not
// there.
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_TOKENIZE_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_TOKENIZE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {

struct TokenizeProgress {
  double share = 0;  // Share of the bytes to read, 0 to 1.
  int64_t documents = 0, tokens = 0;
  bool resumed = false;
};

struct TokenizeOptions {
  std::vector<std::string> files;  // As in ExpandTextPaths().
  std::string directory;
  std::string column = "text";                            // The field of JSON objects.
  std::optional<int32_t> eot;                             // Instead of the tokenizer's.
  bool allow_invalid_text = false;                        // Files that are TooInvalid, too.
  int64_t shard_tokens = 100'000'000;                     // 1 to 2^31 - 1.
  int threads = 0;                                        // 0: the cores that this process may use.
  int64_t chunk_bytes = 1 << 20;                          // Text that one thread takes at once.
  std::function<void(const TokenizeProgress&)> progress;  // Often; on the calling thread.
  std::function<bool()> stop;  // Ends early, with Error(kStopped); whole shards stay.
  double silence_s = 0;  // OpenTextTokens(): how long another process may do nothing; 0: for ever.
};

// `name` is what the tokenizer was opened as, for the record. Goes on where an earlier call with
// the same tokenizer, files, column, eot and shard_tokens was stopped, and does nothing where it
// had finished. One process at a time: see FileLock. Throws DataError, also for a directory that
// holds, or has begun to hold, other tokens, for what is no text (text_check.h), whether it has
// been tokenised before or not, and where nothing remains of the text.
TokenManifest Tokenize(const Tokenizer& tokenizer, const std::string& name,
                       const TokenizeOptions& options);

// A line about the text for a person: empty documents, and text that is no UTF-8, with its first
// place. Empty where there is nothing to say.
std::string Remarks(const TokenManifest& manifest);

// The key that names a set of tokens. It covers the tokenizer, eot, column and the contents of the
// files, and the time of the last change of files that are too large to be hashed whole
// (DescribeFile).
uint64_t TokensKey(const Tokenizer& tokenizer, const TokenizeOptions& options,
                   const std::vector<DataFile>& inputs);
// Path, size and hash of each file as it is stored: nothing is decompressed.
std::vector<DataFile> DescribeInputs(const std::vector<std::string>& files);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_TOKENIZE_H_
