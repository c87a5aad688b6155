// From text to token ids and back.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_TOKENIZER_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// EncodePart() looks at no more bytes than these behind the end of its part.
inline constexpr size_t kLookAhead = 1 << 12;

// Tokens, and the byte of the text that the first character of each comes from, through normal
// forms, prefixes and added tokens. A part of a text is found by these bytes after the whole is
// tokenised; tokenised by itself, the part could have other tokens.
struct PlacedIds {
  std::vector<int32_t> ids;
  std::vector<size_t> begins;  // As many; none is before the one in front of it.
};

// Any number of threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int32_t vocab_size() const = 0;  // Ids are in [0, vocab_size()).
  // Whether the id is a token's: a file may leave some below vocab_size() out.
  virtual bool Has(int32_t id) const { return id >= 0 && id < vocab_size(); }
  // The tokens that begin and end a document, for callers that want them: Encode() adds neither.
  virtual std::optional<int32_t> bos() const { return std::nullopt; }
  virtual std::optional<int32_t> eot() const { return std::nullopt; }
  virtual uint64_t hash() const = 0;  // From its files. Equal hashes: equal ids.

  // Appends the ids of text[0, end); what stands behind may decide where the last word ends.
  // `first`: nothing stands before. Bytes that are no UTF-8 count as U+FFFD, as in Python's
  // decode("utf-8", "replace"). Returns false where a word reaches across `end`: the ids so far
  // then mean nothing. True for end == text.size().
  virtual bool EncodePart(std::string_view text, size_t end, bool first,
                          std::vector<int32_t>& out) const = 0;
  // The ids of well-formed `text`, as Encode() gives them, and the byte where each begins: at its
  // first character, or inside a character of which the id is a later part.
  virtual PlacedIds EncodePlaced(std::string_view text) const = 0;
  // Where a part that begins at 0 may end: at `target` bytes or a little behind, at a place that
  // EncodePart() will very likely accept; text.size() where the rest should stay whole.
  virtual size_t PartEnd(std::string_view text, size_t target) const = 0;

  // The bytes that an id stands for. A text is its ids' pieces, one after the other, less
  // LeadingSpaces(). Bytes need not be UTF-8. Throws std::invalid_argument for an id out of range.
  virtual std::string_view Piece(int32_t id) const = 0;
  // The id of a token as its file spells it, such as "<|endoftext|>".
  virtual std::optional<int32_t> IdOf(std::string_view) const { return std::nullopt; }
  virtual int LeadingSpaces() const { return 0; }  // So many to take off the start of a text.

  std::vector<int32_t> Encode(std::string_view text) const;
  std::vector<int32_t> Lacks(int64_t size) const;  // The ids in [0, size) that it has not.
  // `first`: the ids begin a text; otherwise they go on with one.
  std::string Decode(std::span<const int32_t> ids, bool first = true) const;
};

// Token = byte; nothing ends documents. The bytes are those of the text, UTF-8 or not.
std::shared_ptr<const Tokenizer> ByteTokenizer();
inline constexpr int32_t kByteVocabSize = 256;

// Decodes ids one at a time, for text that is shown as it comes: never a part of a character.
class TextStream {
 public:
  // `first` as in Decode().
  explicit TextStream(const Tokenizer& tokenizer, bool first = true)
      : tokenizer_(tokenizer), strip_(first ? tokenizer.LeadingSpaces() : 0) {}

  // Bytes that can be shown now: all but those that may yet become a character of UTF-8.
  std::string Add(int32_t id);
  std::string Finish();  // The bytes left over.

 private:
  const Tokenizer& tokenizer_;
  int strip_;
  std::string held_;
};

// `bytes`, a tokenizer.json (hf_tokenizer.h) or a SentencePiece model (sentencepiece_tokenizer.h);
// which of the two a file is, its contents say; or a directory (TokenizerFileIn). The files beside
// it are read too (side_files.h). A model with T5Tokenizer in tokenizer_config.json, or called
// spiece.model where that names no class, is read as T5Tokenizer reads it: with its <extra_id_N>,
// as many as extra_ids says.
// Throws DataError that names the file: missing, damaged, or asking for what is not supported.
std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& name);

// The first there is of tokenizer.json, tokenizer.model and spiece.model; empty where there is
// none.
std::optional<std::string> TokenizerFileIn(const std::string& directory);

// Words for a message where there is none: the command that makes a tokenizer.json of other files
// in the directory; or "".
std::string HowToGetTokenizer(const std::string& directory);

// A tokenizer for all ids of a model, which may know more of them than its tokenizer does (a
// vocabulary padded to a round number), or have no tokenizer at all.
// `tokenizer` for its own ids; each further one, below `size`, reads `<id>`, such as `<50300>`, and
// is no token that it Has(). Null: every id reads so and is one, and EncodePart() throws DataError.
std::shared_ptr<const Tokenizer> PaddedVocabulary(std::shared_ptr<const Tokenizer> tokenizer,
                                                  int32_t size);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_TOKENIZER_H_
