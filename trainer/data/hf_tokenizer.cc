#include "trainer/data/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/data/added_tokens.h"
#include "trainer/data/bpe.h"
#include "trainer/data/regex.h"
#include "trainer/data/unicode.h"

namespace fsdp {
namespace {

using Json = nlohmann::json;

// GPT-2's, which ByteLevel uses unless told otherwise (openai/gpt-2, src/encoder.py).
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int32_t kMaxId = 1 << 22;
// How far behind the end of a part the text is looked at.
constexpr size_t kLookAhead = 1 << 12;

// Turned into a DataError with the file's name in one place.
struct Refused {
  std::string what;
};

// --- Reading JSON ---

const Json& At(const Json& map, const char* key, const std::string& where) {
  if (!map.is_object() || !map.contains(key)) throw Refused{where + " has no `" + key + "`"};
  return map.at(key);
}
std::string TextAt(const Json& map, const char* key, const std::string& where) {
  const Json& value = At(map, key, where);
  if (!value.is_string()) throw Refused{where + "." + key + " is no text"};
  return value.get<std::string>();
}
// Absent and null are false.
bool FlagAt(const Json& map, const char* key, const std::string& where, bool standard = false) {
  if (!map.contains(key) || map.at(key).is_null()) return standard;
  if (!map.at(key).is_boolean()) throw Refused{where + "." + key + " is neither true nor false"};
  return map.at(key).get<bool>();
}
int32_t ParseId(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value >= kMaxId) {
    throw Refused{where + " is no id from 0 to " + std::to_string(kMaxId - 1)};
  }
  return value.get<int32_t>();
}
std::string TypeOf(const Json& part, const std::string& where) {
  return TextAt(part, "type", where);
}
bool IsNull(const Json& map, const char* key) {
  return !map.contains(key) || map.at(key).is_null();
}

[[noreturn]] void Unsupported(const std::string& what) {
  throw Refused{what + " is not supported"};
}

Regex MakeRegex(const std::string& pattern, const std::string& where) {
  try {
    return Regex(pattern);
  } catch (const std::invalid_argument& error) {
    throw Refused{where + ": the pattern " + pattern.substr(0, 200) + ": " + error.what()};
  }
}

std::string EscapeForRegex(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// --- ByteLevel's alphabet: printable bytes are themselves, the others U+0100 and on ---

struct Alphabet {
  std::array<uint32_t, 256> of_byte;
  std::map<uint32_t, char> byte_of;
};
const Alphabet& ByteAlphabet() {
  static const Alphabet alphabet = [] {
    Alphabet a;
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      a.of_byte[b] = printable ? b : next++;
      a.byte_of[a.of_byte[b]] = static_cast<char>(b);
    }
    return a;
  }();
  return alphabet;
}

// Empty where a character is none of the alphabet's.
std::optional<std::string> BytesOf(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const CodePoint c = FirstCodePoint(token);
    const auto found = ByteAlphabet().byte_of.find(c.value);
    if (found == ByteAlphabet().byte_of.end()) return std::nullopt;
    bytes += found->second;
    token.remove_prefix(c.bytes);
  }
  return bytes;
}

// --- Normalizers ---

struct Normalizer {
  enum class Kind { kForm, kPrepend, kReplace };
  Kind kind;
  NormalForm form = NormalForm::kNfc;
  std::string content = {};         // kPrepend, kReplace.
  std::optional<Regex> regex = {};  // kReplace.
};

// --- Pre-tokenizers ---

struct Splitter {
  enum class Kind { kSplit, kPrefixSpace, kMetaspace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  Kind kind;
  std::optional<Regex> regex = {};  // kSplit; kMetaspace that splits.
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
  std::string replacement = {};  // kMetaspace.
  Prepend prepend = Prepend::kNever;
};

// --- The tokenizer ---

class HfTokenizer : public Tokenizer {
 public:
  HfTokenizer(const Json& json, const Json& config, uint64_t hash) : hash_(hash) {
    ReadNormalizers(json);
    ReadSplitters(json);
    ReadModel(json);
    ReadAddedTokens(json);
    ReadDecoder(json);
    ReadEnds(json, config);
    for (const Normalizer& n : normalizers_) {
      whole_ |= n.kind == Normalizer::Kind::kPrepend || (n.regex && n.regex->looks_back());
    }
    bool splits = false;
    for (const Splitter& s : splitters_) {
      splits |= s.regex.has_value();
      whole_ |= s.regex && s.regex->looks_back();
    }
    whole_ |= !splits;
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eot() const override { return eot_; }
  uint64_t hash() const override { return hash_; }
  int LeadingSpaces() const override { return strip_; }
  std::optional<int32_t> IdOf(std::string_view token) const override {
    const auto found = added_ids_.find(std::string(token));
    if (found == added_ids_.end()) return std::nullopt;
    return found->second;
  }
  std::string_view Piece(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) {
      throw std::invalid_argument("[Piece] token " + std::to_string(id) + " of " +
                                  std::to_string(vocab_size()));
    }
    return pieces_[static_cast<size_t>(id)];
  }

  bool EncodePart(std::string_view text, size_t end, bool first,
                  std::vector<int32_t>& out) const override;
  size_t PartEnd(std::string_view text, size_t target) const override;

 private:
  struct Scratch {
    Bpe::Scratch bpe;
    Regex::Scratch regex;
    std::string head, tail, joined, normal, other;
    std::vector<int32_t>* out = nullptr;
  };
  // What a part of a text is to the steps below: it ends at `limit`; a piece that reaches across
  // makes them return kAcross. Behind it they stop.
  enum class Outcome { kOn, kStop, kAcross };

  void ReadNormalizers(const Json& json);
  void AddNormalizer(const Json& part, const std::string& where);
  void ReadSplitters(const Json& json);
  void AddSplitter(const Json& part, const std::string& where);
  void AddSplit(Regex regex, Splitter::Behavior behavior, bool invert);
  void ReadModel(const Json& json);
  void ReadAddedTokens(const Json& json);
  void ReadDecoder(const Json& json);
  void AddDecoder(const Json& part, const std::string& where);
  void ReadEnds(const Json& json, const Json& config);
  void ReadTemplate(const Json& part, const std::string& where);

  // Normalised `text`: itself where nothing changes it, else in scratch.normal.
  std::string_view Normalize(std::string_view text, Regex::Scratch& regex, std::string& to,
                             std::string& other) const;
  Outcome EncodeText(std::string_view text, size_t limit, bool first, Scratch& scratch) const;
  Outcome SplitFrom(size_t step, std::string_view piece, size_t limit, bool first,
                    Scratch& scratch) const;
  template <typename Emit>
  Outcome Split(const Splitter& splitter, std::string_view piece, size_t limit, Scratch& scratch,
                const Emit& emit) const;

  // Scratches that nobody uses at the moment.
  class Lease {
   public:
    explicit Lease(const HfTokenizer& owner) : owner_(owner) {
      const std::lock_guard lock(owner_.mutex_);
      if (owner_.idle_.empty()) return;
      scratch_ = std::move(owner_.idle_.back());
      owner_.idle_.pop_back();
    }
    ~Lease() {
      if (!scratch_) return;
      const std::lock_guard lock(owner_.mutex_);
      owner_.idle_.push_back(std::move(scratch_));
    }
    Scratch& get() {
      if (!scratch_) scratch_ = std::make_unique<Scratch>();
      return *scratch_;
    }

   private:
    const HfTokenizer& owner_;
    std::unique_ptr<Scratch> scratch_;
  };

  uint64_t hash_;
  std::vector<Normalizer> normalizers_;
  std::vector<Splitter> splitters_;
  bool byte_level_ = false;
  bool needs_space_ = false;  // A part has to begin with a space, or it would be given one.
  bool whole_ = false;        // Documents cannot be encoded in parts.
  std::optional<Bpe> bpe_;
  AddedTokens added_, added_normalized_;
  std::map<std::string, int32_t> added_ids_;
  std::vector<std::pair<std::string, std::string>> replacements_;  // Of the decoder.
  bool decodes_bytes_ = false;
  std::vector<std::string> pieces_;
  std::vector<int32_t> literal_;  // Added tokens, which stand for their own text.
  int strip_ = 0;
  std::optional<int32_t> bos_, eot_;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

// --- Reading the file ---

void HfTokenizer::AddNormalizer(const Json& part, const std::string& where) {
  const std::string type = TypeOf(part, where);
  static const std::map<std::string, NormalForm> forms = {{"NFC", NormalForm::kNfc},
                                                          {"NFD", NormalForm::kNfd},
                                                          {"NFKC", NormalForm::kNfkc},
                                                          {"NFKD", NormalForm::kNfkd}};
  if (const auto form = forms.find(type); form != forms.end()) {
    normalizers_.push_back({.kind = Normalizer::Kind::kForm, .form = form->second});
  } else if (type == "Sequence") {
    const Json& parts = At(part, "normalizers", where);
    if (!parts.is_array()) throw Refused{where + ".normalizers is no list"};
    for (const Json& inner : parts) AddNormalizer(inner, where);
  } else if (type == "Prepend") {
    normalizers_.push_back(
        {.kind = Normalizer::Kind::kPrepend, .content = TextAt(part, "prepend", where)});
  } else if (type == "Replace") {
    const Json& pattern = At(part, "pattern", where);
    const bool literal = pattern.is_object() && pattern.contains("String");
    const std::string text = TextAt(pattern, literal ? "String" : "Regex", where + ".pattern");
    if (text.empty()) throw Refused{where + ".pattern is empty"};
    normalizers_.push_back({.kind = Normalizer::Kind::kReplace,
                            .content = TextAt(part, "content", where),
                            .regex = MakeRegex(literal ? EscapeForRegex(text) : text, where)});
    // Only of a single character it is sure that no match reaches across the end of a part.
    whole_ |= !literal || FirstCodePoint(text).bytes != text.size();
  } else {
    Unsupported(where + " `" + type + "`");
  }
}

void HfTokenizer::ReadNormalizers(const Json& json) {
  if (!IsNull(json, "normalizer")) AddNormalizer(json.at("normalizer"), "normalizer");
}

void HfTokenizer::AddSplit(Regex regex, Splitter::Behavior behavior, bool invert) {
  splitters_.push_back({.kind = Splitter::Kind::kSplit,
                        .regex = std::move(regex),
                        .behavior = behavior,
                        .invert = invert});
}

void HfTokenizer::AddSplitter(const Json& part, const std::string& where) {
  const std::string type = TypeOf(part, where);
  if (byte_level_) throw Refused{where + ": `" + type + "` behind `ByteLevel` is not supported"};
  if (type == "Sequence") {
    const Json& parts = At(part, "pretokenizers", where);
    if (!parts.is_array()) throw Refused{where + ".pretokenizers is no list"};
    for (const Json& inner : parts) AddSplitter(inner, where);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (FlagAt(part, "add_prefix_space", where, true)) {
      splitters_.push_back({.kind = Splitter::Kind::kPrefixSpace});
      needs_space_ = true;
    }
    if (FlagAt(part, "use_regex", where, true)) {
      AddSplit(MakeRegex(kGpt2Pattern, where), Splitter::Behavior::kIsolated, false);
    }
  } else if (type == "Split") {
    static const std::map<std::string, Splitter::Behavior> behaviors = {
        {"Removed", Splitter::Behavior::kRemoved},
        {"Isolated", Splitter::Behavior::kIsolated},
        {"MergedWithPrevious", Splitter::Behavior::kMergedWithPrevious},
        {"MergedWithNext", Splitter::Behavior::kMergedWithNext},
        {"Contiguous", Splitter::Behavior::kContiguous}};
    const Json& pattern = At(part, "pattern", where);
    const bool literal = pattern.is_object() && pattern.contains("String");
    const std::string text = TextAt(pattern, literal ? "String" : "Regex", where + ".pattern");
    const std::string name = TextAt(part, "behavior", where);
    const auto behavior = behaviors.find(name);
    if (behavior == behaviors.end()) Unsupported(where + ".behavior `" + name + "`");
    if (text.empty()) throw Refused{where + ".pattern is empty"};
    AddSplit(MakeRegex(literal ? EscapeForRegex(text) : text, where), behavior->second,
             FlagAt(part, "invert", where));
  } else if (type == "Digits") {
    AddSplit(MakeRegex(FlagAt(part, "individual_digits", where) ? "\\p{N}" : "\\p{N}+", where),
             Splitter::Behavior::kIsolated, false);
  } else if (type == "Metaspace") {
    Splitter s{.kind = Splitter::Kind::kMetaspace,
               .replacement = TextAt(part, "replacement", where)};
    if (s.replacement.empty() || FirstCodePoint(s.replacement).bytes != s.replacement.size()) {
      throw Refused{where + ".replacement is no single character"};
    }
    const std::string scheme =
        IsNull(part, "prepend_scheme")
            ? FlagAt(part, "add_prefix_space", where, true) ? "always" : "never"
            : TextAt(part, "prepend_scheme", where);
    if (scheme == "always") {
      s.prepend = Splitter::Prepend::kAlways;
    } else if (scheme == "first") {
      s.prepend = Splitter::Prepend::kFirst;
    } else if (scheme != "never") {
      Unsupported(where + ".prepend_scheme `" + scheme + "`");
    }
    needs_space_ |= s.prepend == Splitter::Prepend::kAlways;
    if (FlagAt(part, "split", where, true)) {
      s.regex = MakeRegex(EscapeForRegex(s.replacement), where);
      s.behavior = Splitter::Behavior::kMergedWithNext;
    }
    splitters_.push_back(std::move(s));
  } else {
    Unsupported(where + " `" + type + "`");
  }
}

void HfTokenizer::ReadSplitters(const Json& json) {
  if (!IsNull(json, "pre_tokenizer")) AddSplitter(json.at("pre_tokenizer"), "pre_tokenizer");
}

void HfTokenizer::ReadModel(const Json& json) {
  const std::string where = "model";
  const Json& model = At(json, "model", "the file");
  // Old files leave the type out.
  const std::string type = IsNull(model, "type") ? "BPE" : TypeOf(model, where);
  if (type != "BPE") Unsupported("model `" + type + "`");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!IsNull(model, key) && !TextAt(model, key, where).empty()) {
      Unsupported("model." + std::string(key));
    }
  }
  if (!IsNull(model, "dropout") && model.at("dropout") != 0) Unsupported("model.dropout");
  BpeOptions options;
  options.byte_level = byte_level_;
  options.ignore_merges = FlagAt(model, "ignore_merges", where);
  options.byte_fallback = FlagAt(model, "byte_fallback", where);
  options.fuse_unk = FlagAt(model, "fuse_unk", where);
  if (!IsNull(model, "unk_token")) options.unk = TextAt(model, "unk_token", where);
  const Json& vocab = At(model, "vocab", where);
  if (!vocab.is_object() || vocab.empty()) throw Refused{"model.vocab is no map, or empty"};
  const auto as_units = [&](const std::string& token) {
    return byte_level_ ? BytesOf(token) : std::optional(token);
  };
  for (const auto& [token, value] : vocab.items()) {
    const int32_t id = ParseId(value, "model.vocab[`" + token + "`]");
    if (static_cast<size_t>(id) >= pieces_.size()) pieces_.resize(static_cast<size_t>(id) + 1);
    pieces_[static_cast<size_t>(id)] = token;  // As written: ReadDecoder turns it into bytes.
    // One that is not of the alphabet can be no word's.
    if (std::optional<std::string> units = as_units(token)) {
      options.vocab.emplace_back(std::move(*units), id);
    }
    added_ids_[token] = id;
  }
  const Json& merges = At(model, "merges", where);
  if (!merges.is_array()) throw Refused{"model.merges is no list"};
  options.merges.reserve(merges.size());
  for (const Json& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string& both = merge.get_ref<const std::string&>();
      const size_t space = both.find(' ');
      if (space == std::string::npos) throw Refused{"model.merges: `" + both + "` is no pair"};
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      throw Refused{"model.merges: " + merge.dump().substr(0, 40) + " is no pair"};
    }
    std::optional<std::string> a = as_units(left), b = as_units(right);
    if (!a || !b) throw Refused{"model.merges: `" + left + " " + right + "` is not of bytes"};
    options.merges.emplace_back(std::move(*a), std::move(*b));
  }
  if (options.unk) {
    // By its own name, which need not be of the alphabet.
    if (added_ids_.count(*options.unk) == 0) {
      throw Refused{"model.unk_token `" + *options.unk + "` is no token"};
    }
    if (byte_level_) {
      const std::optional<std::string> units = as_units(*options.unk);
      if (!units) Unsupported("model.unk_token `" + *options.unk + "` under ByteLevel");
      options.unk = units;
    }
  }
  try {
    bpe_.emplace(options);
  } catch (const std::invalid_argument& error) {
    throw Refused{std::string("model: ") + error.what()};
  }
}

void HfTokenizer::ReadAddedTokens(const Json& json) {
  if (IsNull(json, "added_tokens")) return;
  const Json& tokens = json.at("added_tokens");
  if (!tokens.is_array()) throw Refused{"added_tokens is no list"};
  Regex::Scratch regex;
  for (const Json& entry : tokens) {
    const std::string where = "added_tokens";
    AddedToken token;
    token.content = TextAt(entry, "content", where);
    token.id = ParseId(At(entry, "id", where), where + "[`" + token.content + "`].id");
    token.single_word = FlagAt(entry, "single_word", where);
    token.lstrip = FlagAt(entry, "lstrip", where);
    token.rstrip = FlagAt(entry, "rstrip", where);
    if (token.content.empty()) throw Refused{"added_tokens: one is empty"};
    const auto known = added_ids_.find(token.content);
    if (known != added_ids_.end() && known->second != token.id) {
      throw Refused{"added_tokens: `" + token.content + "` has id " + std::to_string(token.id) +
                    ", but " + std::to_string(known->second) + " elsewhere"};
    }
    added_ids_[token.content] = token.id;
    if (static_cast<size_t>(token.id) >= pieces_.size()) {
      pieces_.resize(static_cast<size_t>(token.id) + 1);
    }
    pieces_[static_cast<size_t>(token.id)] = token.content;
    literal_.push_back(token.id);
    if (FlagAt(entry, "normalized", where, !FlagAt(entry, "special", where))) {
      std::string to, other;
      const std::string found(Normalize(token.content, regex, to, other));
      added_normalized_.Add(token, found);
    } else {
      const std::string found = token.content;
      added_.Add(std::move(token), found);
    }
  }
}

void HfTokenizer::AddDecoder(const Json& part, const std::string& where) {
  const std::string type = TypeOf(part, where);
  if (type == "ByteLevel") {
    decodes_bytes_ = true;
  } else if (type == "Sequence") {
    const Json& parts = At(part, "decoders", where);
    if (!parts.is_array()) throw Refused{where + ".decoders is no list"};
    for (const Json& inner : parts) AddDecoder(inner, where);
  } else if (type == "Metaspace") {
    replacements_.emplace_back(TextAt(part, "replacement", where), " ");
    const bool prefix = IsNull(part, "prepend_scheme")
                            ? FlagAt(part, "add_prefix_space", where, true)
                            : TextAt(part, "prepend_scheme", where) != "never";
    if (prefix) strip_ = 1;
  } else if (type == "Replace") {
    const Json& pattern = At(part, "pattern", where);
    if (!pattern.is_object() || !pattern.contains("String")) {
      Unsupported(where + " `Replace` of a pattern");
    }
    const std::string from = TextAt(pattern, "String", where + ".pattern");
    if (from.empty()) throw Refused{where + ".pattern is empty"};
    replacements_.emplace_back(from, TextAt(part, "content", where));
  } else if (type == "Strip") {
    if (TextAt(part, "content", where) != " " || At(part, "stop", where) != 0) {
      Unsupported(where + " `Strip` of anything but spaces at the start");
    }
    strip_ += ParseId(At(part, "start", where), where + ".start");
  } else if (type != "ByteFallback" && type != "Fuse") {  // Pieces are bytes and one text anyway.
    Unsupported(where + " `" + type + "`");
  }
}

void HfTokenizer::ReadDecoder(const Json& json) {
  if (!IsNull(json, "decoder")) AddDecoder(json.at("decoder"), "decoder");
  const auto added = [&] {
    std::vector<std::string> texts;
    for (const int32_t id : literal_) texts.push_back(pieces_[static_cast<size_t>(id)]);
    return texts;
  }();
  for (std::string& piece : pieces_) {
    if (decodes_bytes_) {
      if (std::optional<std::string> bytes = BytesOf(piece)) piece = std::move(*bytes);
      continue;
    }
    for (const auto& [from, to] : replacements_) {
      for (size_t at = 0; (at = piece.find(from, at)) != std::string::npos; at += to.size()) {
        piece.replace(at, from.size(), to);
      }
    }
    if (piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>') {
      const std::string_view digits = "0123456789ABCDEF";
      const size_t high = digits.find(piece[3]), low = digits.find(piece[4]);
      if (high != std::string_view::npos && low != std::string_view::npos) {
        piece = std::string(1, static_cast<char>(high << 4 | low));
      }
    }
  }
  for (size_t i = 0; i < literal_.size(); ++i) pieces_[static_cast<size_t>(literal_[i])] = added[i];
}

void HfTokenizer::ReadTemplate(const Json& part, const std::string& where) {
  const std::string type = TypeOf(part, where);
  if (type == "Sequence") {
    const Json& parts = At(part, "processors", where);
    if (!parts.is_array()) throw Refused{where + ".processors is no list"};
    for (const Json& inner : parts) ReadTemplate(inner, where);
  } else if (type == "TemplateProcessing") {
    bool behind = false;
    const Json& items = At(part, "single", where);
    if (!items.is_array()) throw Refused{where + ".single is no list"};
    for (const Json& item : items) {
      if (item.is_object() && item.contains("Sequence")) {
        behind = true;
        continue;
      }
      const std::string token = TextAt(At(item, "SpecialToken", where), "id", where);
      (behind ? eot_ : bos_) = IdOf(token);
    }
  } else if (type != "ByteLevel") {
    Unsupported(where + " `" + type + "`");
  }
}

void HfTokenizer::ReadEnds(const Json& json, const Json& config) {
  if (!IsNull(json, "post_processor")) ReadTemplate(json.at("post_processor"), "post_processor");
  if (config.is_object() && !IsNull(config, "eos_token")) {
    const Json& eos = config.at("eos_token");
    const std::string name = eos.is_string() ? eos.get<std::string>()
                                             : TextAt(eos, "content", "eos_token of the config");
    eot_ = IdOf(name);
    if (!eot_) throw Refused{"eos_token `" + name + "` of tokenizer_config.json is no token"};
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (!eot_) eot_ = IdOf(name);
  }
}

// --- Encoding ---

std::string_view HfTokenizer::Normalize(std::string_view text, Regex::Scratch& regex,
                                        std::string& to, std::string& other) const {
  for (const Normalizer& n : normalizers_) {
    if (text.empty()) break;
    // `text` may lie in `to`.
    other.clear();
    switch (n.kind) {
      case Normalizer::Kind::kForm:
        AppendNormalized(text, n.form, other);
        break;
      case Normalizer::Kind::kPrepend:
        other += n.content;
        other += text;
        break;
      case Normalizer::Kind::kReplace: {
        size_t done = 0, from = 0;
        Regex::Match match;
        while (from <= text.size() && n.regex->Find(text, from, regex, match)) {
          if (match.end == match.begin) {
            if (match.end == text.size()) break;
            from = match.end + FirstCodePoint(text.substr(match.end)).bytes;
            continue;
          }
          other += text.substr(done, match.begin - done);
          other += n.content;
          done = from = match.end;
        }
        other += text.substr(done);
        break;
      }
    }
    std::swap(to, other);
    text = to;
  }
  return text;
}

// Calls emit(begin, end) for the pieces of `piece`, in order; stops once they lie behind `limit`.
// A piece may reach across it, but not where a match does: a search that begins at `limit` then
// finds the same matches behind it.
template <typename Emit>
HfTokenizer::Outcome HfTokenizer::Split(const Splitter& splitter, std::string_view piece,
                                        size_t limit, Scratch& scratch, const Emit& emit) const {
  using Behavior = Splitter::Behavior;
  // Every stretch of text, matched or between matches, in order.
  const auto for_each = [&](const auto& visit) {
    size_t done = 0, from = 0;
    Regex::Match match;
    while (done < limit && from <= piece.size() &&
           splitter.regex->Find(piece, from, scratch.regex, match)) {
      if (match.begin < limit && limit < match.end) return Outcome::kAcross;
      const bool empty = match.begin == match.end;  // Splits, but takes nothing.
      if (empty && match.end == piece.size()) break;
      from = match.end + (empty ? FirstCodePoint(piece.substr(match.end)).bytes : 0);
      if (match.begin > done) {
        const Outcome outcome = visit(done, match.begin, splitter.invert);
        if (outcome != Outcome::kOn) return outcome;
      }
      done = match.end;
      if (empty) continue;
      const Outcome outcome = visit(match.begin, match.end, !splitter.invert);
      if (outcome != Outcome::kOn) return outcome;
    }
    return done < piece.size() ? visit(done, piece.size(), splitter.invert) : Outcome::kOn;
  };
  const auto bounded = [&](size_t begin, size_t end) {
    return begin >= limit ? Outcome::kStop : emit(begin, end);
  };
  if (splitter.behavior == Behavior::kIsolated || splitter.behavior == Behavior::kRemoved) {
    const bool removes = splitter.behavior == Behavior::kRemoved;
    return for_each([&](size_t begin, size_t end, bool matched) {
      return matched && removes ? Outcome::kOn : bounded(begin, end);
    });
  }
  // The others join neighbours: a piece is known when the next one begins.
  std::optional<std::pair<size_t, size_t>> open;
  bool last = false;
  const Outcome outcome = for_each([&](size_t begin, size_t end, bool matched) {
    bool joins = false;
    if (open) {
      switch (splitter.behavior) {
        case Behavior::kContiguous:
          joins = matched == last;
          break;
        case Behavior::kMergedWithPrevious:
          joins = matched && !last;
          break;
        default:  // kMergedWithNext: of a row of matches, the last one alone.
          joins = last && !matched;
      }
    }
    last = matched;
    if (joins) {
      open->second = end;
      return Outcome::kOn;
    }
    const auto before = std::exchange(open, std::pair(begin, end));
    return before ? bounded(before->first, before->second) : Outcome::kOn;
  });
  if (outcome != Outcome::kOn || !open) return outcome;
  return bounded(open->first, open->second);
}

HfTokenizer::Outcome HfTokenizer::SplitFrom(size_t step, std::string_view piece, size_t limit,
                                            bool first, Scratch& scratch) const {
  if (step == splitters_.size()) {
    if (piece.size() > limit) return Outcome::kAcross;
    bpe_->Encode(piece, scratch.bpe, *scratch.out);
    return Outcome::kOn;
  }
  const Splitter& splitter = splitters_[step];
  const auto into = [&](std::string_view text, size_t its_limit) {
    if (!splitter.regex) return SplitFrom(step + 1, text, its_limit, first, scratch);
    return Split(splitter, text, its_limit, scratch, [&](size_t begin, size_t end) {
      return SplitFrom(step + 1, text.substr(begin, end - begin), std::min(end, its_limit) - begin,
                       first && begin == 0, scratch);
    });
  };
  switch (splitter.kind) {
    case Splitter::Kind::kSplit:
      return into(piece, limit);
    case Splitter::Kind::kPrefixSpace: {
      if (piece.starts_with(' ')) return into(piece, limit);
      return into(" " + std::string(piece), limit + 1);
    }
    case Splitter::Kind::kMetaspace:
      break;
  }
  std::string text;
  size_t its_limit = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    if (i == limit) its_limit = text.size();
    if (piece[i] == ' ') {
      text += splitter.replacement;
    } else {
      text += piece[i];
    }
  }
  if (limit == piece.size()) its_limit = text.size();
  const bool prepends = splitter.prepend == Splitter::Prepend::kAlways ||
                        (splitter.prepend == Splitter::Prepend::kFirst && first);
  if (prepends && !text.starts_with(splitter.replacement)) {
    text.insert(0, splitter.replacement);
    its_limit += splitter.replacement.size();
  }
  return into(text, its_limit);
}

// `text` holds no added token that is found before normalising.
HfTokenizer::Outcome HfTokenizer::EncodeText(std::string_view text, size_t limit, bool first,
                                             Scratch& scratch) const {
  if (!normalizers_.empty()) {
    // The two sides of the limit apart: so it is known where it has gone. A part ends where no
    // normal form joins characters.
    const std::string_view head =
        Normalize(text.substr(0, limit), scratch.regex, scratch.normal, scratch.other);
    scratch.joined.assign(head);
    const size_t head_size = head.size();
    if (limit < text.size()) {
      scratch.joined += Normalize(text.substr(limit), scratch.regex, scratch.normal, scratch.other);
    }
    limit = head_size;
    text = scratch.joined;
  }
  Outcome outcome = Outcome::kOn;
  added_normalized_.Split(
      text,
      [&](size_t begin, size_t end) {
        if (begin >= limit) return false;
        outcome = SplitFrom(0, text.substr(begin, end - begin), std::min(end, limit) - begin,
                            first && begin == 0, scratch);
        return outcome == Outcome::kOn;
      },
      [&](size_t begin, size_t end, int32_t id) {
        if (begin >= limit) return false;
        if (end > limit) outcome = Outcome::kAcross;
        if (outcome == Outcome::kOn) scratch.out->push_back(id);
        return outcome == Outcome::kOn;
      });
  return outcome;
}

bool HfTokenizer::EncodePart(std::string_view text, size_t end, bool first,
                             std::vector<int32_t>& out) const {
  Lease lease(*this);
  Scratch& scratch = lease.get();
  scratch.out = &out;
  std::string_view seen = WellFormed(text.substr(0, end), scratch.head);
  size_t limit = seen.size();
  if (end < text.size()) {
    const std::string_view tail = WellFormed(text.substr(end, kLookAhead), scratch.tail);
    if (seen.data() == text.data() && tail.data() == text.data() + end) {
      seen = text.substr(0, end + tail.size());
    } else {
      // Not in `head`, which `seen` may lie in.
      std::string both(seen);
      both += tail;
      scratch.head = std::move(both);
      seen = scratch.head;
    }
  }
  Outcome outcome = Outcome::kOn;
  added_.Split(
      seen,
      [&](size_t begin, size_t stop) {
        if (begin >= limit) return false;
        outcome = EncodeText(seen.substr(begin, stop - begin), std::min(stop, limit) - begin,
                             first && begin == 0, scratch);
        return outcome == Outcome::kOn;
      },
      [&](size_t begin, size_t stop, int32_t id) {
        if (begin >= limit) return false;
        if (stop > limit) outcome = Outcome::kAcross;
        if (outcome == Outcome::kOn) out.push_back(id);
        return outcome == Outcome::kOn;
      });
  return outcome != Outcome::kAcross;
}

size_t HfTokenizer::PartEnd(std::string_view text, size_t target) const {
  if (whole_ || target >= text.size()) return text.size();
  const auto is_letter = [&](size_t i) { return text[i] >= 'a' && text[i] <= 'z'; };
  constexpr size_t kSearch = 1 << 16;
  const size_t stop = std::min(text.size(), target + kSearch);
  // Between two words of plain letters every pattern in use splits.
  for (size_t i = std::max<size_t>(target, 1); i + 1 < stop; ++i) {
    if (text[i] == ' ' && is_letter(i - 1) && is_letter(i + 1)) return i;
  }
  for (size_t i = std::max<size_t>(target, 1); i < stop; ++i) {
    const char before = text[i - 1];
    const bool space = text[i] == ' ' || (text[i] == '\n' && !needs_space_);
    if (space && before != ' ' && before != '\n' && before != '\r' && before != '\t') return i;
  }
  return text.size();
}

}  // namespace

std::shared_ptr<const Tokenizer> ParseHfTokenizer(const std::string& path, std::string_view json,
                                                  std::string_view config) {
  const auto parse = [&](const std::string& name, std::string_view text) {
    Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_discarded()) throw Refused{name + " is no JSON"};
    if (!parsed.is_object()) throw Refused{name + " is no JSON object"};
    return parsed;
  };
  try {
    const Json read = parse("the file", json);
    const Json beside = config.empty() ? Json() : parse("tokenizer_config.json beside it", config);
    return std::make_shared<const HfTokenizer>(read, beside, HashBytes(config, HashBytes(json)));
  } catch (const Refused& refused) {
    throw DataError("tokenizer: " + path + ": " + refused.what);
  }
}

}  // namespace fsdp
