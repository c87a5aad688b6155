// One file of token ids: what its header says, checked against its size, and its tokens.
//
//   llm.c     256 int32, then the tokens: magic 20240520, version 1, number of tokens; uint16. Or
//             20240801, version 7; uint32 (dev/data/data_common.py of karpathy/llm.c).
//   .npy      one dimension, little-endian uint16, uint32, int32 or int64, versions 1 to 3 (NEP 1).
//   raw       nothing but little-endian uint16 or uint32: the recipe says which.
// A header is known by its first bytes, whatever the file is called; .gz is taken too.
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "trainer/data/data_files.h"

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_FILE_H_
