#include "trainer/data/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/philox.h"
#include "trainer/data/added_tokens.h"
#include "trainer/data/bpe.h"
#include "trainer/data/regex.h"
#include "trainer/data/unicode.h"

namespace fsdp {
namespace {

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

constexpr JsonErrors kErrors{.raise = [](const std::string& message) { throw Refused{message}; },
                             .separator = " ",
                             .key_quote = "`",
                             .not_json = "is no JSON",
                             .integer = "is no id",
                             .text = "is no text",
                             .list = "is no list"};

// Absent and null are `standard`.
bool Flag(const JsonValue& part, const char* key, bool standard = false) {
  const auto value = part.Find(key);
  return value ? value->Boolean() : standard;
}
int32_t Id(const JsonValue& value) { return static_cast<int32_t>(value.Integer(0, kMaxId - 1)); }

// The elements of a list, all of one name.
std::vector<JsonValue> PartsOf(const JsonValue& list, const std::string& place) {
  std::vector<JsonValue> parts = list.Elements();
  for (JsonValue& part : parts) part = part.Named(place);
  return parts;
}

// Of a `Replace` or `Split`: text, or a regular expression.
struct Pattern {
  bool literal;
  std::string text;
};
Pattern PatternOf(const JsonValue& part) {
  const JsonValue json = part.At("pattern");
  const bool literal = json.Has("String");
  const std::string& text = json.At(literal ? "String" : "Regex").Text();
  if (text.empty()) json.Refuse("is empty");
  return {literal, text};
}

[[noreturn]] void Unsupported(const JsonValue& part, const std::string& what) {
  part.Refuse(what + " is not supported");
}

Regex MakeRegex(const std::string& pattern, const JsonValue& part) {
  try {
    return Regex(pattern);
  } catch (const std::invalid_argument& error) {
    throw Refused{part.place() + ": the pattern " + pattern.substr(0, 200) + ": " + error.what()};
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
  HfTokenizer(const JsonValue& json, const std::optional<JsonValue>& config, uint64_t hash)
      : hash_(hash) {
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

  void ReadNormalizers(const JsonValue& json);
  void AddNormalizer(const JsonValue& part);
  void ReadSplitters(const JsonValue& json);
  void AddSplitter(const JsonValue& part);
  void AddSplit(Regex regex, Splitter::Behavior behavior, bool invert);
  void ReadModel(const JsonValue& json);
  void ReadAddedTokens(const JsonValue& json);
  void ReadDecoder(const JsonValue& json);
  void AddDecoder(const JsonValue& part);
  void ReadEnds(const JsonValue& json, const std::optional<JsonValue>& config);
  void ReadTemplate(const JsonValue& part);

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

void HfTokenizer::AddNormalizer(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  static const std::map<std::string, NormalForm> forms = {{"NFC", NormalForm::kNfc},
                                                          {"NFD", NormalForm::kNfd},
                                                          {"NFKC", NormalForm::kNfkc},
                                                          {"NFKD", NormalForm::kNfkd}};
  if (const auto form = forms.find(type); form != forms.end()) {
    normalizers_.push_back({.kind = Normalizer::Kind::kForm, .form = form->second});
  } else if (type == "Sequence") {
    for (const JsonValue& inner : PartsOf(part.At("normalizers"), part.place()))
      AddNormalizer(inner);
  } else if (type == "Prepend") {
    normalizers_.push_back(
        {.kind = Normalizer::Kind::kPrepend, .content = part.At("prepend").Text()});
  } else if (type == "Replace") {
    const auto [literal, text] = PatternOf(part);
    normalizers_.push_back({.kind = Normalizer::Kind::kReplace,
                            .content = part.At("content").Text(),
                            .regex = MakeRegex(literal ? EscapeForRegex(text) : text, part)});
    // Only of a single character it is sure that no match reaches across the end of a part.
    whole_ |= !literal || FirstCodePoint(text).bytes != text.size();
  } else {
    Unsupported(part, "`" + type + "`");
  }
}

void HfTokenizer::ReadNormalizers(const JsonValue& json) {
  if (const auto part = json.Find("normalizer")) AddNormalizer(*part);
}

void HfTokenizer::AddSplit(Regex regex, Splitter::Behavior behavior, bool invert) {
  splitters_.push_back({.kind = Splitter::Kind::kSplit,
                        .regex = std::move(regex),
                        .behavior = behavior,
                        .invert = invert});
}

void HfTokenizer::AddSplitter(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  if (byte_level_) {
    throw Refused{part.place() + ": `" + type + "` behind `ByteLevel` is not supported"};
  }
  if (type == "Sequence") {
    for (const JsonValue& inner : PartsOf(part.At("pretokenizers"), part.place()))
      AddSplitter(inner);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (Flag(part, "add_prefix_space", true)) {
      splitters_.push_back({.kind = Splitter::Kind::kPrefixSpace});
      needs_space_ = true;
    }
    if (Flag(part, "use_regex", true)) {
      AddSplit(MakeRegex(kGpt2Pattern, part), Splitter::Behavior::kIsolated, false);
    }
  } else if (type == "Split") {
    static const std::map<std::string, Splitter::Behavior> behaviors = {
        {"Removed", Splitter::Behavior::kRemoved},
        {"Isolated", Splitter::Behavior::kIsolated},
        {"MergedWithPrevious", Splitter::Behavior::kMergedWithPrevious},
        {"MergedWithNext", Splitter::Behavior::kMergedWithNext},
        {"Contiguous", Splitter::Behavior::kContiguous}};
    const auto [literal, text] = PatternOf(part);
    const JsonValue name = part.At("behavior");
    const auto behavior = behaviors.find(name.Text());
    if (behavior == behaviors.end()) Unsupported(name, "`" + name.Text() + "`");
    AddSplit(MakeRegex(literal ? EscapeForRegex(text) : text, part), behavior->second,
             Flag(part, "invert"));
  } else if (type == "Digits") {
    AddSplit(MakeRegex(Flag(part, "individual_digits") ? "\\p{N}" : "\\p{N}+", part),
             Splitter::Behavior::kIsolated, false);
  } else if (type == "Metaspace") {
    const JsonValue replacement = part.At("replacement");
    Splitter s{.kind = Splitter::Kind::kMetaspace, .replacement = replacement.Text()};
    if (s.replacement.empty() || FirstCodePoint(s.replacement).bytes != s.replacement.size()) {
      replacement.Refuse("is no single character");
    }
    const auto given = part.Find("prepend_scheme");
    const std::string scheme = given                                  ? given->Text()
                               : Flag(part, "add_prefix_space", true) ? "always"
                                                                      : "never";
    if (scheme == "always") {
      s.prepend = Splitter::Prepend::kAlways;
    } else if (scheme == "first") {
      s.prepend = Splitter::Prepend::kFirst;
    } else if (scheme != "never") {
      Unsupported(*given, "`" + scheme + "`");
    }
    needs_space_ |= s.prepend == Splitter::Prepend::kAlways;
    if (Flag(part, "split", true)) {
      s.regex = MakeRegex(EscapeForRegex(s.replacement), part);
      s.behavior = Splitter::Behavior::kMergedWithNext;
    }
    splitters_.push_back(std::move(s));
  } else {
    Unsupported(part, "`" + type + "`");
  }
}

void HfTokenizer::ReadSplitters(const JsonValue& json) {
  if (const auto part = json.Find("pre_tokenizer")) AddSplitter(*part);
}

void HfTokenizer::ReadModel(const JsonValue& json) {
  const JsonValue model = json.At("model");
  // Old files leave the type out.
  if (const auto type = model.Find("type"); type && type->Text() != "BPE") {
    Unsupported(model, "`" + type->Text() + "`");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model.Find(key);
    if (affix && !affix->Text().empty()) affix->Refuse("is not supported");
  }
  const auto dropout = model.Find("dropout");
  if (dropout && !dropout->Is("0")) dropout->Refuse("is not supported");
  BpeOptions options;
  options.byte_level = byte_level_;
  options.ignore_merges = Flag(model, "ignore_merges");
  options.byte_fallback = Flag(model, "byte_fallback");
  options.fuse_unk = Flag(model, "fuse_unk");
  const auto unk = model.Find("unk_token");
  if (unk) options.unk = unk->Text();
  const JsonValue vocab = model.At("vocab");
  const auto tokens = vocab.IsObject() ? vocab.Members() : decltype(vocab.Members())();
  if (tokens.empty()) vocab.Refuse("is no map, or empty");
  const auto as_units = [&](const std::string& token) {
    return byte_level_ ? BytesOf(token) : std::optional(token);
  };
  for (const auto& [token, value] : tokens) {
    const int32_t id = Id(value.Named("model.vocab[`" + token + "`]"));
    if (static_cast<size_t>(id) >= pieces_.size()) pieces_.resize(static_cast<size_t>(id) + 1);
    pieces_[static_cast<size_t>(id)] = token;  // As written: ReadDecoder turns it into bytes.
    // One that is not of the alphabet can be no word's.
    if (std::optional<std::string> units = as_units(token)) {
      options.vocab.emplace_back(std::move(*units), id);
    }
    added_ids_[token] = id;
  }
  const std::vector<JsonValue> merges = model.At("merges").Elements();
  options.merges.reserve(merges.size());
  for (const JsonValue& merge : merges) {
    std::string left, right;
    if (merge.IsText()) {
      const std::string& both = merge.Text();
      const size_t space = both.find(' ');
      if (space == std::string::npos) throw Refused{"model.merges: `" + both + "` is no pair"};
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      const auto pair = merge.IsList() ? merge.Elements() : std::vector<JsonValue>();
      if (pair.size() != 2 || !pair[0].IsText() || !pair[1].IsText()) {
        throw Refused{"model.merges: " + merge.Dump().substr(0, 40) + " is no pair"};
      }
      left = pair[0].Text();
      right = pair[1].Text();
    }
    std::optional<std::string> a = as_units(left), b = as_units(right);
    if (!a || !b) throw Refused{"model.merges: `" + left + " " + right + "` is not of bytes"};
    options.merges.emplace_back(std::move(*a), std::move(*b));
  }
  if (options.unk) {
    // By its own name, which need not be of the alphabet.
    if (added_ids_.count(*options.unk) == 0) unk->Refuse("`" + *options.unk + "` is no token");
    if (byte_level_) {
      const std::optional<std::string> units = as_units(*options.unk);
      if (!units) Unsupported(*unk, "`" + *options.unk + "` under ByteLevel");
      options.unk = units;
    }
  }
  try {
    bpe_.emplace(options);
  } catch (const std::invalid_argument& error) {
    throw Refused{std::string("model: ") + error.what()};
  }
}

void HfTokenizer::ReadAddedTokens(const JsonValue& json) {
  const auto tokens = json.Find("added_tokens");
  if (!tokens) return;
  Regex::Scratch regex;
  for (const JsonValue& entry : PartsOf(*tokens, tokens->place())) {
    AddedToken token;
    token.content = entry.At("content").Text();
    token.id = Id(entry.At("id").Named("added_tokens[`" + token.content + "`].id"));
    token.single_word = Flag(entry, "single_word");
    token.lstrip = Flag(entry, "lstrip");
    token.rstrip = Flag(entry, "rstrip");
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
    if (Flag(entry, "normalized", !Flag(entry, "special"))) {
      std::string to, other;
      const std::string found(Normalize(token.content, regex, to, other));
      added_normalized_.Add(token, found);
    } else {
      const std::string found = token.content;
      added_.Add(std::move(token), found);
    }
  }
}

void HfTokenizer::AddDecoder(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  if (type == "ByteLevel") {
    decodes_bytes_ = true;
  } else if (type == "Sequence") {
    for (const JsonValue& inner : PartsOf(part.At("decoders"), part.place())) AddDecoder(inner);
  } else if (type == "Metaspace") {
    replacements_.emplace_back(part.At("replacement").Text(), " ");
    const auto scheme = part.Find("prepend_scheme");
    const bool prefix = scheme ? scheme->Text() != "never" : Flag(part, "add_prefix_space", true);
    if (prefix) strip_ = 1;
  } else if (type == "Replace") {
    if (!part.At("pattern").Has("String")) Unsupported(part, "`Replace` of a pattern");
    replacements_.emplace_back(PatternOf(part).text, part.At("content").Text());
  } else if (type == "Strip") {
    if (part.At("content").Text() != " " || !part.At("stop").Is("0")) {
      Unsupported(part, "`Strip` of anything but spaces at the start");
    }
    strip_ += Id(part.At("start"));
  } else if (type != "ByteFallback" && type != "Fuse") {  // Pieces are bytes and one text anyway.
    Unsupported(part, "`" + type + "`");
  }
}

void HfTokenizer::ReadDecoder(const JsonValue& json) {
  if (const auto part = json.Find("decoder")) AddDecoder(*part);
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

void HfTokenizer::ReadTemplate(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  if (type == "Sequence") {
    for (const JsonValue& inner : PartsOf(part.At("processors"), part.place())) ReadTemplate(inner);
  } else if (type == "TemplateProcessing") {
    bool behind = false;
    for (const JsonValue& item : PartsOf(part.At("single"), part.place())) {
      if (item.Has("Sequence")) {
        behind = true;
        continue;
      }
      const JsonValue token = item.At("SpecialToken").Named(part.place());
      (behind ? eot_ : bos_) = IdOf(token.At("id").Text());
    }
  } else if (type != "ByteLevel") {
    Unsupported(part, "`" + type + "`");
  }
}

void HfTokenizer::ReadEnds(const JsonValue& json, const std::optional<JsonValue>& config) {
  if (const auto part = json.Find("post_processor")) ReadTemplate(*part);
  if (const auto eos = config ? config->Find("eos_token") : std::nullopt) {
    const std::string name =
        (eos->IsText() ? *eos : eos->Named("eos_token of the config").At("content")).Text();
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
  const auto parse = [](const char* name, std::string_view text) {
    JsonValue parsed = ParseJson(text, "", kErrors, name);
    if (!parsed.IsObject()) parsed.Refuse("is no JSON object");
    return parsed;
  };
  try {
    const JsonValue read = parse("the file", json);
    std::optional<JsonValue> beside;
    if (!config.empty()) beside = parse("tokenizer_config.json beside it", config);
    return std::make_shared<const HfTokenizer>(read, beside, HashBytes(config, HashBytes(json)));
  } catch (const Refused& refused) {
    throw DataError("tokenizer: " + path + ": " + refused.what);
  }
}

}  // namespace fsdp
