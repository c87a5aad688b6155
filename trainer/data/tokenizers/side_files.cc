#include "trainer/data/tokenizers/side_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/json_text.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kMap = "special_tokens_map.json";
constexpr const char* kAdded = "added_tokens.json";
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kAdditional = "additional_special_tokens";

// The order in which transformers adds them.
constexpr std::array<const char*, 7> kNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

bool IsName(std::string_view key) {
  return std::find(kNames.begin(), kNames.end(), key) != kNames.end();
}

class Reader {
 public:
  Reader(const std::string& path, const std::set<std::string>& own) : path_(path), own_(own) {}

  SideTokens Read(const SideFiles& files);

 private:
  [[noreturn]] void Refuse(const std::string& what) const {
    throw DataError("tokenizer: " + path_ + ": " + what);
  }
  JsonTree Parse(const char* file, std::string_view text) const;
  // A token of its text, or of an object with its flags.
  SideToken TokenOf(const JsonTree& value, const std::string& key, const char* file) const;
  // Takes what `object`, the contents of `file`, says.
  void ReadKeys(const JsonTree& object, const char* file);
  void ReadExtra(const JsonTree& value, const char* key, const char* file);
  std::vector<SideToken> Listed(const JsonTree& decoder) const;
  std::vector<SideToken> Listed(const char* file, const JsonTree& added) const;
  bool IsNamed(const std::string& content) const;

  const std::string path_;
  const std::set<std::string>& own_;
  std::map<std::string, SideToken> named_;                 // By their seven names.
  std::vector<std::pair<std::string, SideToken>> others_;  // By other names.
  std::vector<SideToken> extra_;
  bool extra_is_given_ = false;  // As a list.
};

JsonTree Reader::Parse(const char* file, std::string_view text) const {
  if (text.empty()) return JsonTree::Object();
  std::optional<JsonTree> json = JsonTree::Parse(JsonOfPython(std::string(text)));
  if (!json) {
    const JsonFault fault = FaultOfRefused(text);
    Refuse(std::string(file) + " beside it:" + std::to_string(fault.line) + ":" +
           std::to_string(fault.column) + ": " + fault.reason);
  }
  if (!json->IsObject()) Refuse(std::string(file) + " beside it is no JSON object");
  return std::move(*json);
}

SideToken Reader::TokenOf(const JsonTree& value, const std::string& key, const char* file) const {
  const std::string place = std::string(file) + " beside it, " + key;
  SideToken out;
  out.token.id = -1;
  const JsonTree* const content = value.IsObject() ? value.Find("content") : &value;
  if (content == nullptr || !content->IsText()) Refuse(place + ": is neither a text nor a token");
  out.token.content = content->Text();
  out.place = place + ": `" + out.token.content.substr(0, 100) + "`";
  const auto flag = [&](const char* name, bool standard) {
    const JsonTree* const found = value.IsObject() ? value.Find(name) : nullptr;
    if (found == nullptr || found->IsNull()) return standard;
    if (!found->IsBoolean()) Refuse(out.place + ": `" + name + "` is neither true nor false");
    return found->Boolean();
  };
  out.token.single_word = flag("single_word", false);
  out.token.lstrip = flag("lstrip", false);
  out.token.rstrip = flag("rstrip", false);
  const bool special = flag("special", value.IsText() || !key.starts_with("added_tokens_decoder"));
  out.normalized = flag("normalized", !special);
  return out;
}

bool Reader::IsNamed(const std::string& content) const {
  const auto is = [&](const auto& named) { return named.second.token.content == content; };
  return std::any_of(named_.begin(), named_.end(), is) ||
         std::any_of(others_.begin(), others_.end(), is);
}

void Reader::ReadExtra(const JsonTree& value, const char* key, const char* file) {
  const bool list = value.IsList();
  if (!list && !value.IsObject()) {
    Refuse(std::string(file) + " beside it, " + key + ": is neither a list nor a map of tokens");
  }
  extra_is_given_ |= list;
  for (size_t i = 0; list && i < value.size(); ++i) {
    extra_.push_back(TokenOf(value[i], std::string(key) + "[" + std::to_string(i) + "]", file));
  }
  if (list) return;
  for (const JsonTree::Member& member : value.Members()) {
    others_.emplace_back(member.key,
                         TokenOf(member.value, std::string(key) + "." + member.key, file));
  }
}

void Reader::ReadKeys(const JsonTree& object, const char* file) {
  for (const JsonTree::Member& member : object.Members()) {
    const JsonTree& value = member.value;
    if (IsName(member.key)) {
      if (value.IsNull()) {
        named_.erase(member.key);
      } else {
        named_[member.key] = TokenOf(value, member.key, file);
      }
    } else if (member.key.ends_with("_token") && (value.IsText() || value.Contains("content"))) {
      others_.emplace_back(member.key, TokenOf(value, member.key, file));
    }
  }
  // The old name counts where the new one is empty, and, of a second file, where the first has
  // neither.
  const auto given = [&](const char* key) -> const JsonTree* {
    const JsonTree* const found = object.Find(key);
    return found == nullptr || found->IsNull() ? nullptr : found;
  };
  const JsonTree* const extra = given(kExtra);
  const JsonTree* const additional = given(kAdditional);
  const bool empty = extra == nullptr || ((extra->IsList() || extra->IsObject()) && extra->empty());
  const bool before = extra_is_given_;
  if (extra != nullptr) ReadExtra(*extra, kExtra, file);
  if (additional != nullptr && empty && !before && (extra == nullptr || file == kConfig)) {
    ReadExtra(*additional, kAdditional, file);
  }
}

std::vector<SideToken> Reader::Listed(const JsonTree& decoder) const {
  if (!decoder.IsObject()) {
    Refuse(std::string(kConfig) + " beside it, added_tokens_decoder: is no map of tokens");
  }
  std::vector<SideToken> listed;
  for (const JsonTree::Member& member : decoder.Members()) {
    const std::string key = "added_tokens_decoder[" + member.key.substr(0, 100) + "]";
    int32_t id = -1;
    const char* const end = member.key.data() + member.key.size();
    const auto [read, error] = std::from_chars(member.key.data(), end, id);
    if (error != std::errc() || read != end || id < 0) {
      Refuse(std::string(kConfig) + " beside it, " + key + ": is no id");
    }
    if (!member.value.IsObject()) {
      Refuse(std::string(kConfig) + " beside it, " + key + ": is no token");
    }
    listed.push_back(TokenOf(member.value, key, kConfig));
    listed.back().token.id = id;
    const JsonTree* const normalized = member.value.Find("normalized");
    if (normalized == nullptr || normalized->IsNull()) {
      listed.back().normalized &= !IsNamed(listed.back().token.content);
    }
  }
  return listed;
}

std::vector<SideToken> Reader::Listed(const char* file, const JsonTree& added) const {
  std::vector<SideToken> listed;
  for (const JsonTree::Member& member : added.Members()) {
    SideToken token = TokenOf(JsonTree(member.key), "`" + member.key.substr(0, 100) + "`", file);
    token.place = std::string(file) + " beside it: `" + member.key.substr(0, 100) + "`";
    if (!member.value.IsInteger() || member.value.Number() < 0 || member.value.Number() > 1 << 30) {
      Refuse(token.place + ": is given no id");
    }
    token.token.id = static_cast<int32_t>(member.value.Integer());
    const auto is = [&](const SideToken& other) { return other.token.content == member.key; };
    const auto named = [&](const auto& other) { return is(other.second); };
    token.normalized = std::none_of(named_.begin(), named_.end(), named) &&
                       std::none_of(extra_.begin(), extra_.end(), is);
    listed.push_back(std::move(token));
  }
  return listed;
}

SideTokens Reader::Read(const SideFiles& files) {
  SideTokens out;
  out.config = Parse(kConfig, files.config);
  ReadKeys(out.config, kConfig);
  if (const JsonTree* const split = out.config.Find("split_special_tokens");
      split != nullptr && split->IsBoolean() && split->Boolean()) {
    Refuse(std::string(kConfig) + " beside it, split_special_tokens: true is not supported");
  }
  std::vector<SideToken> listed;
  const JsonTree* const decoder = out.config.Find("added_tokens_decoder");
  if (decoder != nullptr && !decoder->IsNull()) {
    listed = Listed(*decoder);
  } else {
    ReadKeys(Parse(kMap, files.special_tokens_map), kMap);
    listed = Listed(kAdded, Parse(kAdded, files.added_tokens));
  }
  std::stable_sort(listed.begin(), listed.end(),
                   [](const SideToken& a, const SideToken& b) { return a.token.id < b.token.id; });
  std::set<std::string> known = own_;
  for (SideToken& token : listed) {
    known.insert(token.token.content);
    out.tokens.push_back(std::move(token));
  }
  const auto add = [&](const SideToken& token) {
    if (known.count(token.token.content) == 0) out.tokens.push_back(token);
  };
  for (const char* name : kNames) {
    if (const auto found = named_.find(name); found != named_.end()) add(found->second);
  }
  for (const auto& [name, token] : others_) add(token);
  for (const SideToken& token : extra_) add(token);
  std::erase_if(out.tokens, [](const SideToken& token) { return token.token.content.empty(); });
  for (const auto& [name, token] : named_) out.named[name] = token.token.content;
  return out;
}

}  // namespace

uint64_t SideFiles::Hash(uint64_t tokenizer) const {
  uint64_t hash = HashBytes(config, tokenizer);
  if (config.find("\"added_tokens_decoder\"") != std::string_view::npos) return hash;
  for (const std::string_view file : {special_tokens_map, added_tokens}) {
    if (!file.empty()) hash = HashBytes(file, hash);
  }
  return hash;
}

SideTokens ReadSideTokens(const std::string& path, const SideFiles& files,
                          const std::set<std::string>& own) {
  return Reader(path, own).Read(files);
}

int32_t IdOfAdded(const std::string& path, const SideToken& token, std::optional<int32_t> known,
                  int32_t next) {
  const int32_t id = known.value_or(next), given = token.token.id;
  if (given < 0 || given == id) return id;
  throw DataError("tokenizer: " + path + ": " + token.place + " has id " + std::to_string(given) +
                  ", but " + std::to_string(id) +
                  (known ? " elsewhere" : " is the next that is free, which it would get"));
}

}  // namespace fsdp
