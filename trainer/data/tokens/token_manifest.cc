#include "trainer/data/tokens/token_manifest.h"

#include <cerrno>
#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/hex.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

constexpr const char* kFormat = "fsdp-train tokens 1";

// An exception of its own, so that the place is added once.
struct Wrong {
  std::string what;
};

JsonValue At(const JsonValue& map, const char* key) {
  if (!map.Has(key)) throw Wrong{std::string("no `") + key + "`"};
  return map.At(key);
}

std::string Text(const JsonValue& map, const char* key) {
  const JsonValue value = At(map, key);
  if (!value.IsText()) throw Wrong{std::string("`") + key + "` is no text"};
  return value.Text();
}

int64_t Integer(const JsonValue& map, const char* key, int64_t min, int64_t max) {
  const JsonValue value = At(map, key);
  if (value.IsInteger(min, max)) return value.Integer();
  throw Wrong{std::string("`") + key + "` is no integer from " + std::to_string(min) + " to " +
              std::to_string(max)};
}

uint64_t Hash(const JsonValue& map, const char* key) {
  const std::string text = Text(map, key);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Wrong{std::string("`") + key + "` is no hexadecimal number"};
  }
  return value;
}

std::vector<JsonValue> List(const JsonValue& map, const char* key) {
  const JsonValue value = At(map, key);
  if (!value.IsList()) throw Wrong{std::string("`") + key + "` is no list"};
  return value.Elements();
}

TokenManifest Parse(const std::string& text) {
  const std::optional<JsonValue> parsed = TryParseJson(text);
  if (!parsed) throw Wrong{"no JSON"};
  const JsonValue& json = *parsed;
  if (Text(json, "format") != kFormat) {
    throw Wrong{std::string("`format` is not `") + kFormat + "`"};
  }
  constexpr int64_t kMax = int64_t{1} << 62;
  constexpr int64_t kMaxVocab = std::numeric_limits<int32_t>::max();
  TokenManifest m;
  m.key = Hash(json, "key");
  m.tokenizer = Text(json, "tokenizer");
  m.tokenizer_hash = Hash(json, "tokenizer_hash");
  m.vocab_size = static_cast<int32_t>(Integer(json, "vocab_size", 1, kMaxVocab));
  if (!At(json, "eot").IsNull()) {
    m.eot = static_cast<int32_t>(Integer(json, "eot", 0, m.vocab_size - 1));
  }
  m.documents = Integer(json, "documents", 0, kMax);
  m.tokens = Integer(json, "tokens", 1, kMax);
  m.empty_documents = Integer(json, "empty_documents", 0, kMax);
  m.invalid_utf8 = Integer(json, "invalid_utf8", 0, kMax);
  if (json.Has("first_invalid_utf8")) m.first_invalid_utf8 = Text(json, "first_invalid_utf8");
  if (json.Has("too_invalid_utf8")) m.too_invalid_utf8 = Text(json, "too_invalid_utf8");
  if (json.Has("read_as")) m.read_as = Text(json, "read_as");
  for (const JsonValue& input : List(json, "inputs")) {
    m.inputs.push_back(
        {Text(input, "path"), Integer(input, "bytes", 0, kMax), Hash(input, "hash")});
  }
  int64_t sum = 0;
  for (const JsonValue& shard : List(json, "shards")) {
    m.shards.push_back(
        {Text(shard, "file"), Integer(shard, "tokens", 1, kMax), Hash(shard, "hash")});
    const std::string& file = m.shards.back().file;
    if (file.empty() || file.find('/') != std::string::npos) {
      throw Wrong{"a shard's `file` is no plain name"};
    }
    sum += m.shards.back().tokens;
  }
  if (sum != m.tokens) {
    throw Wrong{"its shards hold " + std::to_string(sum) + " tokens, not " +
                std::to_string(m.tokens)};
  }
  return m;
}

}  // namespace

std::string ToJson(const TokenManifest& m) {
  JsonTree json = JsonTree::Object({{"format", kFormat},
                                    {"key", ToHex(m.key)},
                                    {"tokenizer", m.tokenizer},
                                    {"tokenizer_hash", ToHex(m.tokenizer_hash)},
                                    {"vocab_size", m.vocab_size},
                                    {"eot", m.eot},
                                    {"documents", m.documents},
                                    {"tokens", m.tokens},
                                    {"empty_documents", m.empty_documents},
                                    {"invalid_utf8", m.invalid_utf8}});
  if (m.invalid_utf8 > 0) json["first_invalid_utf8"] = m.first_invalid_utf8;
  if (!m.too_invalid_utf8.empty()) json["too_invalid_utf8"] = m.too_invalid_utf8;
  if (!m.read_as.empty()) json["read_as"] = m.read_as;
  JsonTree inputs = JsonTree::List(), shards = JsonTree::List();
  for (const DataFile& input : m.inputs) {
    inputs.Append(JsonTree::Object(
        {{"path", input.path}, {"bytes", input.bytes}, {"hash", ToHex(input.hash)}}));
  }
  for (const TokenManifest::Shard& shard : m.shards) {
    shards.Append(JsonTree::Object(
        {{"file", shard.file}, {"tokens", shard.tokens}, {"hash", ToHex(shard.hash)}}));
  }
  json["inputs"] = std::move(inputs);
  json["shards"] = std::move(shards);
  // A path need not be UTF-8.
  return json.Dump(2, JsonTree::IllFormed::kReplaced) + "\n";
}

TokenManifest ParseTokenManifest(const std::string& path, const std::string& text) {
  try {
    return Parse(text);
  } catch (const Wrong& wrong) {
    throw DataError("data: " + path + ": " + wrong.what +
                    ": tokenize again, or remove it to use the shards by themselves");
  }
}

std::optional<TokenManifest> ReadTokenManifest(const std::string& directory) {
  const std::string path = directory + "/" + kTokenManifest;
  const FileText read = ReadFileText(path, kAnySize);
  if (read.error == ENOENT || read.error == ENOTDIR) return std::nullopt;
  if (!read.why.empty()) {
    throw DataError("data: " + path + ": " + (read.error == 0 ? "" : "cannot be read: ") +
                    read.why);
  }
  return ParseTokenManifest(path, read.text);
}

}  // namespace fsdp
