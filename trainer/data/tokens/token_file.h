// One file of token ids: what its header says, checked against its size, and its tokens.
//
//   llm.c     256 int32, then the tokens: magic 20240520, version 1, number of tokens; uint16. Or
//             20240801, version 7; uint32 (dev/data/data_common.py of karpathy/llm.c).
//   .npy      one dimension, little-endian uint16, uint32, int32 or int64, versions 1 to 3 (NEP 1).
//   raw       nothing but little-endian uint16 or uint32: the recipe says which.
// A header is known by its first bytes, whatever the file is called; .gz is taken too.
// Tests: tests/trainer/data/tokens/token_file_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/data_files.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

enum class TokenDType { kUint16, kUint32, kInt32, kInt64 };

constexpr int64_t SizeOf(TokenDType dtype) {
  return dtype == TokenDType::kUint16 ? 2 : dtype == TokenDType::kInt64 ? 8 : 4;
}
constexpr std::string_view Name(TokenDType dtype) {
  return std::array{"uint16", "uint32", "int32", "int64"}[static_cast<size_t>(dtype)];
}

inline constexpr int64_t kLlmcHeaderBytes = 256 * 4;
// The llm.c header before `tokens` (< 2^31) tokens of kUint16 or kUint32.
std::string LlmcHeader(TokenDType dtype, int64_t tokens);

class TokenFile {
 public:
  // `raw`: the dtype of a file without header; empty where it has one. Throws DataError that names
  // file and cure: no header or one too many, a dtype or shape that is not among those above, more
  // or fewer bytes than the header says, no tokens. Reads the header alone.
  TokenFile(FileContents contents, std::optional<TokenDType> raw);

  const std::string& path() const { return contents_.path(); }
  const FileContents& contents() const { return contents_; }
  TokenDType dtype() const { return dtype_; }
  int64_t size() const { return size_; }  // Tokens, > 0.

  // Tokens [offset, offset + out.size()), which must exist. Throws DataError with file and offset
  // for one that no int32 holds, and where the file has become shorter (CheckIntact()); so does
  // Count().
  void Read(int64_t offset, std::span<int32_t> out) const;
  // How many of tokens [offset, offset + count) are `token`: at memory speed, in place.
  int64_t Count(int64_t offset, int64_t count, int32_t token) const;

  std::string Where(int64_t offset) const;  // "a.bin, token 17".

 private:
  void ReadLlmc(TokenDType dtype, int32_t version);
  void ReadNpy();
  void CheckSize(int64_t bytes, int64_t tokens);

  FileContents contents_;
  TokenDType dtype_ = TokenDType::kUint16;
  int64_t size_ = 0;
  const char* data_ = nullptr;  // At any alignment.
};

// Token files (token_file.h), end to end. Nothing is put between two files.

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

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_H_
