// Where tokens come from: a long row of them, readable at any offset. Sources hold no position, so
// one may be read by many threads and a resumed run needs nothing from it.
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKEN_SOURCE_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKEN_SOURCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

// What a run was trained on, for the record and for ranks to compare.
struct DataFile {
  std::string path;
  int64_t bytes = 0;  // Of the contents as trained on: a .gz counts decompressed.
  uint64_t hash = 0;  // HashBytes() (core/philox.h) of these.
  bool operator==(const DataFile&) const = default;
};

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t size() const = 0;        // Tokens, > 0.
  virtual int32_t vocab_size() const = 0;  // An upper bound: a token may lie in [0, vocab_size()).

  // Tokens [offset, offset + out.size()). Any number of threads. May block on the disk. Throws
  // std::invalid_argument unless all of them exist.
  virtual void Read(int64_t offset, std::span<int32_t> out) const = 0;

  virtual std::string Describe() const = 0;             // "a.txt and 2 more files".
  virtual std::string Where(int64_t offset) const = 0;  // "a.txt, byte 17".
  virtual std::vector<DataFile> Files() const = 0;      // Reads everything; in order; may be none.
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
TrainAndValid SplitSource(std::shared_ptr<const TokenSource> source, double valid_fraction);

// Throws DataError with file and offset for the first token >= vocab_size. Reads everything once,
// or nothing where source.vocab_size() rules such tokens out.
void CheckTokens(const TokenSource& source, int32_t vocab_size);

namespace internal {
// The checks of Read() that all sources share.
void CheckRange(const TokenSource& source, int64_t offset, std::span<const int32_t> out);
// Throws DataError for the first token outside [0, vocab_size); tokens[0] is at `offset`.
void CheckVocabulary(const TokenSource& source, int64_t offset, std::span<const int32_t> tokens,
                     int32_t vocab_size);
}  // namespace internal

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKEN_SOURCE_H_
