#include "trainer/data/tokenizers/open_tokenizer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <tuple>

#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/data/data_files.h"
#include "trainer/data/tokenizers/hf_tokenizer.h"
#include "trainer/data/tokenizers/sentencepiece_tokenizer.h"

namespace fsdp {
namespace {

constexpr int64_t kMostTokenizerBytes = int64_t{256} << 20;

}  // namespace

std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& name) {
  if (name == "bytes") return ByteTokenizer();
  std::optional<FileContents> file, config;
  if (::access(name.c_str(), R_OK) != 0) {
    throw DataError("tokenizer: " + name + ": " + std::strerror(errno) +
                    " (a relative path starts at the working directory)");
  }
  const std::string beside =
      (std::filesystem::path(name).parent_path() / "tokenizer_config.json").string();
  for (const std::string& path : {name, beside}) {
    std::error_code none;
    if (std::filesystem::file_size(path, none) == 0 && !none) {
      throw DataError("tokenizer: " + path + ": is empty");
    }
  }
  file.emplace(name);
  if (PathExists(beside)) config.emplace(beside);
  const std::string_view bytes = file->bytes(), extra = config ? config->bytes() : "";
  for (const auto& [path, size, most] : {std::tuple(name, std::ssize(bytes), kMostTokenizerBytes),
                                         std::tuple(beside, std::ssize(extra), kMostTextBytes)}) {
    if (size <= most) continue;
    throw DataError("tokenizer: " + path + ": has " + std::to_string(size) +
                    " bytes, the most is " + std::to_string(most));
  }
  const size_t start = bytes.find_first_not_of(" \t\r\n");
  if (start != std::string_view::npos && bytes[start] == '{') {
    return ParseHfTokenizer(name, bytes, extra);
  }
  return ParseSentencePiece(name, bytes, extra);
}

}  // namespace fsdp
