// Where tokens come from: a long row of them, readable at any offset. Sources hold no position, so
// one may be read by many threads and a resumed run needs nothing from it.
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_SOURCE_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/check_row.h"
#include "trainer/data/data_files.h"

namespace fsdp {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t size() const = 0;        // Tokens, > 0.
  virtual int32_t vocab_size() const = 0;  // An upper bound: a token may lie in [0, vocab_size()).
  // The token that ends every document; empty where there are no documents, or the token is
  // unknown.
  virtual std::optional<int32_t> eot() const { return std::nullopt; }

  // Tokens [offset, offset + out.size()). Any number of threads. May block on the disk. Throws
  // std::invalid_argument unless all of them exist.
  virtual void Read(int64_t offset, std::span<int32_t> out) const = 0;
  // How many of tokens [offset, offset + count) are `token`. As Read() otherwise.
  virtual int64_t Count(int64_t offset, int64_t count, int32_t token) const;

  virtual std::string Describe() const = 0;             // "a.txt and 2 more files".
  virtual std::string Where(int64_t offset) const = 0;  // "a.txt, byte 17".
  virtual std::vector<DataFile> Files() const = 0;      // In order; may be none. Reads them.
};

// Tokens [begin, end) of a source. Throws std::invalid_argument unless 0 <= begin < end <= size().
std::shared_ptr<const TokenSource> SliceSource(std::shared_ptr<const TokenSource> source,
                                               int64_t begin, int64_t end);

struct TrainAndValid {
  std::shared_ptr<const TokenSource> train, valid;
};

// The last floor(size * valid_fraction) tokens for validation, all before them for training: no
// target of one is an input or a target of the other. Wants 0 < valid_fraction < 1; throws
// DataError if one side would be empty.
TrainAndValid SplitSource(const std::shared_ptr<const TokenSource>& source, double valid_fraction);

// The same tokens, with documents that end at `eot`.
std::shared_ptr<const TokenSource> WithEot(std::shared_ptr<const TokenSource> source, int32_t eot);

// A look at the tokens before a run begins; what it does not see, the loader finds batch by batch.
// Throws DataError with file and offset for a token >= vocab_size. Reads nothing where
// source.vocab_size() rules such tokens out, everything up to 2^26 tokens, and of more 1024
// stretches of 2^14, evenly spaced, the first and the last tokens among them: the mistake it is
// for, data of another tokenizer, is all over the data, and terabytes are not read before step 1.
void CheckTokens(const TokenSource& source, int32_t vocab_size);

// For CheckRow(): the place of the token at `offset`, in words.
TokenPlace PlaceIn(const TokenSource& source, int64_t offset);

namespace internal {
// The check of Read() that all sources share.
void CheckRange(const TokenSource& source, int64_t offset, int64_t count);
}  // namespace internal

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_SOURCE_H_
