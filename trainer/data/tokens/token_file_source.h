// Token files (token_file.h), end to end. Nothing is put between two files.
// Tests: tests/trainer/data/tokens/token_file_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_SOURCE_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_SOURCE_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/tokens/token_file.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

class TokenFileSource : public TokenSource {
 public:
  // Files and globs as in ExpandPaths; a directory with a tokens.json stands for its shards.
  // `dtype`: for files without header. `eot`: the end-of-text token; empty: that of tokens.json
  // beside the files, if all have one. Opens every file and reads its header. Reads a file whole if
  // its hash stands in tokens.json. Throws DataError, also for tokens.json files that disagree with
  // each other or with their shards.
  explicit TokenFileSource(std::span<const std::string> paths,
                           std::optional<TokenDType> dtype = std::nullopt,
                           std::optional<int32_t> eot = std::nullopt);

  int64_t size() const override { return starts_.back(); }
  // That of tokens.json, else the number of ids that the files' dtypes can hold.
  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> eot() const override { return eot_; }
  void Read(int64_t offset, std::span<int32_t> out) const override;
  int64_t Count(int64_t offset, int64_t count, int32_t token) const override;
  std::string Describe() const override;
  std::string Where(int64_t offset) const override;
  std::vector<DataFile> Files() const override;

 private:
  size_t FileOf(int64_t offset) const;
  // visit(file, offset in it, count, done so far) for the stretches that tokens [offset, offset +
  // count) lie in.
  template <typename Visit>
  void ForEachStretch(int64_t offset, int64_t count, const Visit& visit) const;

  std::vector<TokenFile> files_;
  std::vector<std::optional<DataFile>> described_;  // Files that have been read.
  std::vector<int64_t> starts_;                     // Where each file begins, and the end of the
                                                    // last.
  int32_t vocab_size_ = 0;
  std::optional<int32_t> eot_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_SOURCE_H_
