// The characters that a SentencePiece model replaces before it looks for pieces, as
// `tokenizers` replaces them (normalizers/precompiled.rs, the crate spm_precompiled).
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_PRECOMPILED_CHARSMAP_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_PRECOMPILED_CHARSMAP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class PrecompiledCharsmap {
 public:
  // `bytes`: NormalizerSpec.precompiled_charsmap of sentencepiece_model.proto: the size of a
  // double-array trie, the trie, and texts that end in zero bytes. Throws
  // std::invalid_argument("why").
  explicit PrecompiledCharsmap(std::string_view bytes);

  // Appends well-formed `text` with its replacements. `from`, unless null, gets for each byte the
  // byte of `text` that it comes from. A grapheme of up to 5 bytes is replaced as a whole by what
  // stands for its shortest beginning; of others, each character by itself.
  void Append(std::string_view text, std::string& out, std::vector<size_t>* from) const;

 private:
  std::optional<std::string_view> Find(std::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
};

// RFC 4648, section 4. Empty where `text` is not of its alphabet.
std::optional<std::string> FromBase64(std::string_view text);
std::string ToBase64(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_PRECOMPILED_CHARSMAP_H_
