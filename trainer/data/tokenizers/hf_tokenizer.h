// tokenizer.json of Hugging Face's `tokenizers`: byte-pair encodings as GPT-2, Llama, Qwen, Mistral
// and their kin have them, and unigram models as T5 has. The same ids as the library's
// encode(text, add_special_tokens=False), which finds added tokens in the text too, special ones
// included; with the tokens of the files beside it (side_files.h) those of transformers.
//
//   model           BPE: merges as text or pairs, ignore_merges, byte_fallback, unk_token, fuse_unk
//                   Unigram: unk_id, byte_fallback
//   normalizer      NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Strip, Sequence
//   pre_tokenizer   ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit,
//                   Sequence
//   decoder         ByteLevel, Metaspace, Sequence of Replace, ByteFallback, Fuse, Strip
//   post_processor  ByteLevel, TemplateProcessing and Sequence, read for bos() and eot() alone
// Everything else is refused by name. Two things differ where Unicode is not settled: characters
// younger than Unicode 14 may be no letters yet for one of the libraries, and `single_word` takes
// alphabetic symbols (circled letters) for symbols.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_H_

#include <memory>
#include <string>
#include <string_view>

#include "trainer/data/tokenizers/side_files.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {

// `path` is for messages. The eos_token of the files beside it is the eot(). Without one, what the
// template puts behind a text is, or else the token called
// <|endoftext|>, <|end_of_text|>, </s> or <eos>, the first there is. Throws DataError.
std::shared_ptr<const Tokenizer> ParseHfTokenizer(const std::string& path, std::string_view json,
                                                  const SideFiles& beside);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_H_
