#include "trainer/data/tokenizers/tokenizer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/paths.h"
#include "trainer/core/philox.h"
#include "trainer/core/read_file.h"
#include "trainer/data/data_files.h"
#include "trainer/data/hub_cache.h"
#include "trainer/data/tokenizers/hf_tokenizer.h"
#include "trainer/data/tokenizers/sentencepiece_model.h"
#include "trainer/data/tokenizers/sentencepiece_tokenizer.h"
#include "trainer/data/tokenizers/side_files.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

class Bytes : public Tokenizer {
 public:
  Bytes() {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i);
  }

  int32_t vocab_size() const override { return kByteVocabSize; }
  uint64_t hash() const override { return HashBytes("bytes"); }
  bool EncodePart(std::string_view text, size_t end, bool,
                  std::vector<int32_t>& out) const override {
    for (const char byte : text.substr(0, end)) out.push_back(static_cast<unsigned char>(byte));
    return true;
  }
  PlacedIds EncodePlaced(std::string_view text) const override {
    PlacedIds out;
    EncodePart(text, text.size(), /*first=*/true, out.ids);
    out.begins.resize(out.ids.size());
    std::iota(out.begins.begin(), out.begins.end(), size_t{0});
    return out;
  }
  size_t PartEnd(std::string_view text, size_t target) const override {
    return std::min(text.size(), target);
  }
  std::string_view Piece(int32_t id) const override {
    if (id < 0 || id >= kByteVocabSize) {
      throw std::invalid_argument("[Piece] token " + std::to_string(id) + " is not a byte");
    }
    return {&bytes_[static_cast<size_t>(id)], 1};
  }

 private:
  std::array<char, 256> bytes_;
};

}  // namespace

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  EncodePart(text, text.size(), /*first=*/true, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::Lacks(int64_t size) const {
  std::vector<int32_t> lacks;
  for (int32_t id = 0; id < size; ++id) {
    if (!Has(id)) lacks.push_back(id);
  }
  return lacks;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool first) const {
  std::string text;
  TextStream stream(*this, first);
  for (const int32_t id : ids) text += stream.Add(id);
  return text + stream.Finish();
}

std::shared_ptr<const Tokenizer> ByteTokenizer() {
  static const auto tokenizer = std::make_shared<const Bytes>();
  return tokenizer;
}

std::string TextStream::Add(int32_t id) {
  std::string_view piece = tokenizer_.Piece(id);
  for (; strip_ > 0 && !piece.empty(); --strip_) {
    if (!piece.starts_with(' ')) {
      strip_ = 0;
      break;
    }
    piece.remove_prefix(1);
  }
  held_ += piece;
  // The last character stays back while it is well begun and not whole.
  size_t tail = held_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, held_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(held_[held_.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t length = byte < 0xc2 || byte > 0xf4 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    // Whole once it and zeros instead of the rest would be ill-formed anyway: WellFormed() decides.
    if (length > back) {
      std::string probe = held_.substr(held_.size() - back), buffer;
      // An ill-formed start is one U+FFFD for each part of it; a mere beginning is one in all.
      if (WellFormed(probe, buffer).size() == 3) tail = held_.size() - back;
    }
    break;
  }
  std::string out = held_.substr(0, tail);
  held_.erase(0, tail);
  return out;
}

std::string TextStream::Finish() { return std::exchange(held_, {}); }

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostTokenizerBytes = int64_t{256} << 20;

// Empty where it is absent. Throws DataError for an empty or long one.
std::optional<FileContents> ReadIfThere(const std::string& path, int64_t most) {
  if (!PathExists(path)) return std::nullopt;
  std::error_code none;
  if (fs::file_size(path, none) == 0 && !none) {
    throw DataError("tokenizer: " + path + ": is empty");
  }
  std::optional<FileContents> file(std::in_place, path);
  if (std::ssize(file->bytes()) <= most) return file;
  throw DataError("tokenizer: " + path + ": has " + std::to_string(file->bytes().size()) +
                  " bytes, the most is " + std::to_string(most));
}

std::string TextOf(const JsonTree& config, const char* key) {
  const JsonTree* const value = config.Find(key);
  return value != nullptr && value->IsText() ? value->Text() : "";
}

// How many <extra_id_N> transformers' T5Tokenizer adds to the pieces of a model; empty where it is
// not the class that opens them. Where none is named, spiece.model is its file.
std::optional<int32_t> ExtraIds(const JsonTree& config, const std::string& path) {
  const std::string name = TextOf(config, "tokenizer_class");
  const bool ours = name.empty() ? fs::path(path).filename() == "spiece.model"
                                 : name == "T5Tokenizer" || name == "T5TokenizerFast";
  if (!ours) return std::nullopt;
  const JsonTree* const given = config.Find("extra_ids");
  if (given == nullptr) return 100;
  constexpr int64_t kMost = 1 << 16;
  if (!given->IsInteger() || given->Number() < 0 || given->Number() > kMost) {
    throw std::invalid_argument(
        "tokenizer_config.json beside it, extra_ids: is no number from 0 "
        "to " +
        std::to_string(kMost));
  }
  return static_cast<int32_t>(given->Integer());
}

}  // namespace

std::optional<std::string> TokenizerFileIn(const std::string& directory) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "spiece.model"}) {
    std::string path = (fs::path(directory) / name).string();
    if (PathExists(path)) return path;
  }
  return std::nullopt;
}

std::string HowToGetTokenizer(const std::string& directory) {
  for (const char* file : {"vocab.json", "tekken.json", "tiktoken.model", "vocab.txt"}) {
    if (!PathExists((fs::path(directory) / file).string())) continue;
    return ", but " + std::string(file) +
           ", which is not read; transformers writes a tokenizer.json beside it: `python3 -c "
           "'import sys, transformers as t; "
           "t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' " +
           ShellWord(directory) + "`";
  }
  return "";
}

std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& name) {
  if (name == "bytes") return ByteTokenizer();
  std::error_code none;
  if (fs::is_directory(name, none)) {
    if (const auto file = TokenizerFileIn(name)) return OpenTokenizer(*file);
    throw DataError("tokenizer: " + name +
                    ": holds no tokenizer.json, tokenizer.model or spiece.model" +
                    HowToGetTokenizer(name) + WhereInHubCache(name));
  }
  if (::access(name.c_str(), R_OK) != 0) {
    throw DataError("tokenizer: " + name + ": " + std::strerror(errno) +
                    " (a relative path starts at the working directory)");
  }
  const auto beside = [&](const char* file) {
    return ReadIfThere((fs::path(name).parent_path() / file).string(), kMostTextBytes);
  };
  const std::optional<FileContents> file = ReadIfThere(name, kMostTokenizerBytes);
  if (!file) throw DataError("tokenizer: " + name + ": is gone");
  const auto config = beside("tokenizer_config.json"), map = beside("special_tokens_map.json"),
             added = beside("added_tokens.json");
  const auto bytes_of = [](const std::optional<FileContents>& read) {
    return read ? read->bytes() : std::string_view();
  };
  const SideFiles side{bytes_of(config), bytes_of(map), bytes_of(added)};
  const std::string_view bytes = file->bytes();
  const size_t start = bytes.find_first_not_of(" \t\r\n");
  if (start != std::string_view::npos && bytes[start] == '{') {
    return ParseHfTokenizer(name, bytes, side);
  }
  const auto parsed = [&](const std::optional<FileContents>& read) {
    std::optional<JsonTree> json = JsonTree::Parse(read ? read->bytes() : "{}");
    return json ? std::move(*json) : JsonTree();
  };
  std::string json;
  try {
    const JsonTree keys = parsed(config);
    const std::optional<int32_t> extra_ids = ExtraIds(keys, name);
    if (!extra_ids) return ParseSentencePiece(name, bytes, side);
    // T5Tokenizer leaves its own list out where tokenizer_config.json has one.
    const JsonTree* const extra = keys.Find("extra_special_tokens");
    const bool listed =
        keys.Contains("additional_special_tokens") || (extra != nullptr && !extra->IsObject());
    json = T5TokenizerJson(bytes, *extra_ids, !listed);
  } catch (const std::invalid_argument& error) {
    throw DataError("tokenizer: " + name + ": " + error.what());
  }
  return ParseHfTokenizer(name, json, side);
}

namespace {

class Whole : public Tokenizer {
 public:
  Whole(std::shared_ptr<const Tokenizer> tokenizer, int32_t size)
      : tokenizer_(std::move(tokenizer)), known_(tokenizer_ ? tokenizer_->vocab_size() : 0) {
    for (int32_t id = known_; id < size; ++id) {
      std::string piece = "<";
      piece.append(std::to_string(id)).append(">");
      further_.push_back(std::move(piece));
    }
  }

  int32_t vocab_size() const override { return known_ + static_cast<int32_t>(further_.size()); }
  bool Has(int32_t id) const override {
    return tokenizer_ ? tokenizer_->Has(id) : Tokenizer::Has(id);
  }
  std::optional<int32_t> bos() const override {
    return tokenizer_ ? tokenizer_->bos() : Tokenizer::bos();
  }
  std::optional<int32_t> eot() const override {
    return tokenizer_ ? tokenizer_->eot() : Tokenizer::eot();
  }
  uint64_t hash() const override { return tokenizer_ ? tokenizer_->hash() : 0; }
  std::optional<int32_t> IdOf(std::string_view token) const override {
    return tokenizer_ ? tokenizer_->IdOf(token) : Tokenizer::IdOf(token);
  }
  int LeadingSpaces() const override { return tokenizer_ ? tokenizer_->LeadingSpaces() : 0; }

  bool EncodePart(std::string_view text, size_t end, bool first,
                  std::vector<int32_t>& out) const override {
    if (!tokenizer_) throw DataError("tokenizer: there is none to make tokens of a text");
    return tokenizer_->EncodePart(text, end, first, out);
  }
  PlacedIds EncodePlaced(std::string_view text) const override {
    if (!tokenizer_) throw DataError("tokenizer: there is none to make tokens of a text");
    return tokenizer_->EncodePlaced(text);
  }
  size_t PartEnd(std::string_view text, size_t target) const override {
    return tokenizer_ ? tokenizer_->PartEnd(text, target) : text.size();
  }
  std::string_view Piece(int32_t id) const override {
    const int64_t further = int64_t{id} - known_;
    if (further >= 0 && further < static_cast<int64_t>(further_.size())) {
      return further_[static_cast<size_t>(further)];
    }
    if (!tokenizer_) throw std::invalid_argument("[Piece] token " + std::to_string(id));
    return tokenizer_->Piece(id);
  }

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const int32_t known_;
  std::vector<std::string> further_;
};

}  // namespace

std::shared_ptr<const Tokenizer> PaddedVocabulary(std::shared_ptr<const Tokenizer> tokenizer,
                                                  int32_t size) {
  return std::make_shared<const Whole>(std::move(tokenizer), size);
}

}  // namespace fsdp
