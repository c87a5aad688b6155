#include "trainer/data/tokenizers/hf_tokenizer_file.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"

namespace fsdp {
namespace {

// GPT-2's, which ByteLevel uses unless told otherwise (openai/gpt-2, src/encoder.py).
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int32_t kMaxId = 1 << 22;

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

// The pattern of a `Replace` or `Split`: text, or a regular expression.
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

class Reader {
 public:
  HfTokenizerFile Read(const JsonValue& json, const std::optional<JsonValue>& config);

 private:
  void ReadNormalizers(const JsonValue& json);
  void AddNormalizer(const JsonValue& part);
  void ReadSplitters(const JsonValue& json);
  void AddSplitter(const JsonValue& part);
  void AddSplit(Regex regex, HfSplitter::Behavior behavior, bool invert);
  void ReadModel(const JsonValue& json);
  void ReadAddedTokens(const JsonValue& json);
  void ReadDecoder(const JsonValue& json);
  void AddDecoder(const JsonValue& part);
  void ReadEnds(const JsonValue& json, const std::optional<JsonValue>& config);
  void ReadTemplate(const JsonValue& part);
  std::optional<int32_t> IdOf(std::string_view token) const {
    const auto found = file_.ids.find(std::string(token));
    if (found == file_.ids.end()) return std::nullopt;
    return found->second;
  }

  HfTokenizerFile file_;
  bool byte_level_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;  // The decoder's.
  bool decodes_bytes_ = false;
  std::vector<int32_t> literal_;  // Added tokens, which stand for their own text.
};

void Reader::AddNormalizer(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  static const std::map<std::string, NormalForm> forms = {{"NFC", NormalForm::kNfc},
                                                          {"NFD", NormalForm::kNfd},
                                                          {"NFKC", NormalForm::kNfkc},
                                                          {"NFKD", NormalForm::kNfkd}};
  if (const auto form = forms.find(type); form != forms.end()) {
    file_.normalizers.push_back({.kind = HfNormalizer::Kind::kForm, .form = form->second});
  } else if (type == "Sequence") {
    for (const JsonValue& inner : PartsOf(part.At("normalizers"), part.place()))
      AddNormalizer(inner);
  } else if (type == "Prepend") {
    file_.normalizers.push_back(
        {.kind = HfNormalizer::Kind::kPrepend, .content = part.At("prepend").Text()});
  } else if (type == "Replace") {
    const auto [literal, text] = PatternOf(part);
    file_.normalizers.push_back({.kind = HfNormalizer::Kind::kReplace,
                                 .content = part.At("content").Text(),
                                 .regex = MakeRegex(literal ? EscapeForRegex(text) : text, part)});
    // Only of a single character it is sure that no match reaches across the end of a part.
    file_.whole |= !literal || FirstCodePoint(text).bytes != text.size();
  } else {
    Unsupported(part, "`" + type + "`");
  }
}

void Reader::ReadNormalizers(const JsonValue& json) {
  if (const auto part = json.Find("normalizer")) AddNormalizer(*part);
}

void Reader::AddSplit(Regex regex, HfSplitter::Behavior behavior, bool invert) {
  file_.splitters.push_back({.kind = HfSplitter::Kind::kSplit,
                             .regex = std::move(regex),
                             .behavior = behavior,
                             .invert = invert});
}

void Reader::AddSplitter(const JsonValue& part) {
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
      file_.splitters.push_back({.kind = HfSplitter::Kind::kPrefixSpace});
      file_.needs_space = true;
    }
    if (Flag(part, "use_regex", true)) {
      AddSplit(MakeRegex(kGpt2Pattern, part), HfSplitter::Behavior::kIsolated, false);
    }
  } else if (type == "Split") {
    static const std::map<std::string, HfSplitter::Behavior> behaviors = {
        {"Removed", HfSplitter::Behavior::kRemoved},
        {"Isolated", HfSplitter::Behavior::kIsolated},
        {"MergedWithPrevious", HfSplitter::Behavior::kMergedWithPrevious},
        {"MergedWithNext", HfSplitter::Behavior::kMergedWithNext},
        {"Contiguous", HfSplitter::Behavior::kContiguous}};
    const auto [literal, text] = PatternOf(part);
    const JsonValue name = part.At("behavior");
    const auto behavior = behaviors.find(name.Text());
    if (behavior == behaviors.end()) Unsupported(name, "`" + name.Text() + "`");
    AddSplit(MakeRegex(literal ? EscapeForRegex(text) : text, part), behavior->second,
             Flag(part, "invert"));
  } else if (type == "Digits") {
    AddSplit(MakeRegex(Flag(part, "individual_digits") ? "\\p{N}" : "\\p{N}+", part),
             HfSplitter::Behavior::kIsolated, false);
  } else if (type == "Metaspace") {
    const JsonValue replacement = part.At("replacement");
    HfSplitter s{.kind = HfSplitter::Kind::kMetaspace, .replacement = replacement.Text()};
    if (s.replacement.empty() || FirstCodePoint(s.replacement).bytes != s.replacement.size()) {
      replacement.Refuse("is no single character");
    }
    const auto given = part.Find("prepend_scheme");
    const std::string scheme = given                                  ? given->Text()
                               : Flag(part, "add_prefix_space", true) ? "always"
                                                                      : "never";
    if (scheme == "always") {
      s.prepend = HfSplitter::Prepend::kAlways;
    } else if (scheme == "first") {
      s.prepend = HfSplitter::Prepend::kFirst;
    } else if (scheme != "never") {
      Unsupported(*given, "`" + scheme + "`");
    }
    file_.needs_space |= s.prepend == HfSplitter::Prepend::kAlways;
    if (Flag(part, "split", true)) {
      s.regex = MakeRegex(EscapeForRegex(s.replacement), part);
      s.behavior = HfSplitter::Behavior::kMergedWithNext;
    }
    file_.splitters.push_back(std::move(s));
  } else {
    Unsupported(part, "`" + type + "`");
  }
}

void Reader::ReadSplitters(const JsonValue& json) {
  if (const auto part = json.Find("pre_tokenizer")) AddSplitter(*part);
}

void Reader::ReadModel(const JsonValue& json) {
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
    if (static_cast<size_t>(id) >= file_.pieces.size())
      file_.pieces.resize(static_cast<size_t>(id) + 1);
    file_.pieces[static_cast<size_t>(id)] = token;  // As written: ReadDecoder turns it into bytes.
    // One that is not of the alphabet can be no word's.
    if (std::optional<std::string> units = as_units(token)) {
      options.vocab.emplace_back(std::move(*units), id);
    }
    file_.ids[token] = id;
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
    if (file_.ids.count(*options.unk) == 0) unk->Refuse("`" + *options.unk + "` is no token");
    if (byte_level_) {
      const std::optional<std::string> units = as_units(*options.unk);
      if (!units) Unsupported(*unk, "`" + *options.unk + "` under ByteLevel");
      options.unk = units;
    }
  }
  try {
    file_.bpe.emplace(options);
  } catch (const std::invalid_argument& error) {
    throw Refused{std::string("model: ") + error.what()};
  }
}

void Reader::ReadAddedTokens(const JsonValue& json) {
  const auto tokens = json.Find("added_tokens");
  if (!tokens) return;
  for (const JsonValue& entry : PartsOf(*tokens, tokens->place())) {
    AddedToken token;
    token.content = entry.At("content").Text();
    token.id = Id(entry.At("id").Named("added_tokens[`" + token.content + "`].id"));
    token.single_word = Flag(entry, "single_word");
    token.lstrip = Flag(entry, "lstrip");
    token.rstrip = Flag(entry, "rstrip");
    if (token.content.empty()) throw Refused{"added_tokens: one is empty"};
    const auto known = file_.ids.find(token.content);
    if (known != file_.ids.end() && known->second != token.id) {
      throw Refused{"added_tokens: `" + token.content + "` has id " + std::to_string(token.id) +
                    ", but " + std::to_string(known->second) + " elsewhere"};
    }
    file_.ids[token.content] = token.id;
    if (static_cast<size_t>(token.id) >= file_.pieces.size()) {
      file_.pieces.resize(static_cast<size_t>(token.id) + 1);
    }
    file_.pieces[static_cast<size_t>(token.id)] = token.content;
    literal_.push_back(token.id);
    const bool normalized = Flag(entry, "normalized", !Flag(entry, "special"));
    file_.added.push_back({std::move(token), normalized});
  }
}

void Reader::AddDecoder(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  if (type == "ByteLevel") {
    decodes_bytes_ = true;
  } else if (type == "Sequence") {
    for (const JsonValue& inner : PartsOf(part.At("decoders"), part.place())) AddDecoder(inner);
  } else if (type == "Metaspace") {
    replacements_.emplace_back(part.At("replacement").Text(), " ");
    const auto scheme = part.Find("prepend_scheme");
    const bool prefix = scheme ? scheme->Text() != "never" : Flag(part, "add_prefix_space", true);
    if (prefix) file_.strip = 1;
  } else if (type == "Replace") {
    if (!part.At("pattern").Has("String")) Unsupported(part, "`Replace` of a pattern");
    replacements_.emplace_back(PatternOf(part).text, part.At("content").Text());
  } else if (type == "Strip") {
    if (part.At("content").Text() != " " || !part.At("stop").Is("0")) {
      Unsupported(part, "`Strip` of anything but spaces at the start");
    }
    file_.strip += Id(part.At("start"));
  } else if (type != "ByteFallback" && type != "Fuse") {  // Pieces are bytes and one text anyway.
    Unsupported(part, "`" + type + "`");
  }
}

void Reader::ReadDecoder(const JsonValue& json) {
  if (const auto part = json.Find("decoder")) AddDecoder(*part);
  const auto added = [&] {
    std::vector<std::string> texts;
    for (const int32_t id : literal_) texts.push_back(file_.pieces[static_cast<size_t>(id)]);
    return texts;
  }();
  for (std::string& piece : file_.pieces) {
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
  for (size_t i = 0; i < literal_.size(); ++i)
    file_.pieces[static_cast<size_t>(literal_[i])] = added[i];
}

void Reader::ReadTemplate(const JsonValue& part) {
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
      (behind ? file_.eot : file_.bos) = IdOf(token.At("id").Text());
    }
  } else if (type != "ByteLevel") {
    Unsupported(part, "`" + type + "`");
  }
}

void Reader::ReadEnds(const JsonValue& json, const std::optional<JsonValue>& config) {
  if (const auto part = json.Find("post_processor")) ReadTemplate(*part);
  if (const auto eos = config ? config->Find("eos_token") : std::nullopt) {
    const std::string name =
        (eos->IsText() ? *eos : eos->Named("eos_token of the config").At("content")).Text();
    file_.eot = IdOf(name);
    if (!file_.eot) throw Refused{"eos_token `" + name + "` of tokenizer_config.json is no token"};
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (!file_.eot) file_.eot = IdOf(name);
  }
}

HfTokenizerFile Reader::Read(const JsonValue& json, const std::optional<JsonValue>& config) {
  ReadNormalizers(json);
  ReadSplitters(json);
  ReadModel(json);
  ReadAddedTokens(json);
  ReadDecoder(json);
  ReadEnds(json, config);
  for (const HfNormalizer& n : file_.normalizers) {
    file_.whole |= n.kind == HfNormalizer::Kind::kPrepend || (n.regex && n.regex->looks_back());
  }
  bool splits = false;
  for (const HfSplitter& s : file_.splitters) {
    splits |= s.regex.has_value();
    file_.whole |= s.regex && s.regex->looks_back();
  }
  file_.whole |= !splits;
  return std::move(file_);
}

}  // namespace

HfTokenizerFile ReadHfTokenizerFile(const std::string& path, std::string_view json,
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
    return Reader().Read(read, beside);
  } catch (const Refused& refused) {
    throw DataError("tokenizer: " + path + ": " + refused.what);
  }
}

}  // namespace fsdp
