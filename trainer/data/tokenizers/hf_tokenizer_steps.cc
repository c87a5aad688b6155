#include "trainer/data/tokenizers/hf_tokenizer_steps.h"

#include <array>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "trainer/data/tokenizers/hf_tokenizer_json.h"

namespace fsdp {
namespace {

// GPT-2's, which ByteLevel uses unless told otherwise (openai/gpt-2, src/encoder.py).
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Characters at which Punctuation splits: ASCII's and, as the library's tables have them, Unicode
// 8's.
constexpr const char* kPunctuation =
    R"([!-/:-@\[-`{-~\p{P}\x{166d}\x{111c9}&&[^\x{61d}\x{9fd}\x{a76}\x{c77}\x{c84}\x{1b4e}\x{1b4f})"
    R"(\x{1b7d}-\x{1b7f}\x{2e43}-\x{2e5d}\x{10d6e}\x{10ead}\x{10f55}-\x{10f89}\x{113d4}-\x{113d8})"
    R"(\x{1144b}-\x{1145d}\x{11660}-\x{1166c}\x{116b9}\x{1183b}-\x{11b09}\x{11be1}\x{11c41}-\x{11c71})"
    R"(\x{11ef7}-\x{11fff}\x{12ff1}\x{12ff2}\x{16d6d}-\x{16d6f}\x{16e97}-\x{16e9a}\x{16fe2})"
    R"(\x{1e5ff}-\x{1e95f}]])";
// The regex crate's \w, and what is neither that nor a space.
constexpr const char* kWhitespace = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+)"
                                    R"(|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";

Regex MakeRegex(const std::string& pattern, const JsonValue& part) {
  try {
    return Regex(pattern);
  } catch (const std::invalid_argument& error) {
    throw HfRefused{part.place() + ": the pattern " + pattern.substr(0, 200) + ": " + error.what()};
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

class StepsReader {
 public:
  HfSteps Read(const JsonValue& json);

 private:
  void AddNormalizer(const JsonValue& part);
  void AddSplitter(const JsonValue& part);
  void AddSplit(Regex regex, HfSplitter::Behavior behavior, bool invert);

  HfSteps steps_;
};

void StepsReader::AddNormalizer(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  static const std::map<std::string, NormalForm> forms = {{"NFC", NormalForm::kNfc},
                                                          {"NFD", NormalForm::kNfd},
                                                          {"NFKC", NormalForm::kNfkc},
                                                          {"NFKD", NormalForm::kNfkd}};
  if (const auto form = forms.find(type); form != forms.end()) {
    steps_.normalizers.push_back({.kind = HfNormalizer::Kind::kForm, .form = form->second});
  } else if (type == "Sequence") {
    for (const JsonValue& inner : HfParts(part.At("normalizers"), part.place()))
      AddNormalizer(inner);
  } else if (type == "Prepend") {
    steps_.normalizers.push_back(
        {.kind = HfNormalizer::Kind::kPrepend, .content = part.At("prepend").Text()});
  } else if (type == "Replace") {
    const auto [literal, text] = HfPatternOf(part);
    steps_.normalizers.push_back({.kind = HfNormalizer::Kind::kReplace,
                                  .content = part.At("content").Text(),
                                  .regex = MakeRegex(literal ? EscapeForRegex(text) : text, part)});
    // Only of a single character it is sure that no match reaches across the end of a part.
    steps_.whole |= !literal || FirstCodePoint(text).bytes != text.size();
  } else if (type == "Precompiled") {
    const JsonValue text = part.At("precompiled_charsmap");
    const std::optional<std::string> bytes = FromBase64(text.Text());
    if (!bytes) text.Refuse("is no base64");
    HfNormalizer n{.kind = HfNormalizer::Kind::kPrecompiled};
    try {
      n.charsmap.emplace(*bytes);
    } catch (const std::invalid_argument& error) {
      text.Refuse(error.what());
    }
    steps_.normalizers.push_back(std::move(n));
  } else if (type == "Nmt") {
    steps_.normalizers.push_back({.kind = HfNormalizer::Kind::kNmt});
  } else if (type == "Strip") {
    steps_.normalizers.push_back({.kind = HfNormalizer::Kind::kStrip,
                                  .left = HfFlag(part, "strip_left"),
                                  .right = HfFlag(part, "strip_right")});
    steps_.whole = true;
  } else {
    HfUnsupported(part, "`" + type + "`");
  }
}

void StepsReader::AddSplit(Regex regex, HfSplitter::Behavior behavior, bool invert) {
  steps_.splitters.push_back({.kind = HfSplitter::Kind::kSplit,
                              .regex = std::move(regex),
                              .behavior = behavior,
                              .invert = invert,
                              .of_bytes = steps_.byte_level});
}

HfSplitter::Behavior BehaviorOf(const JsonValue& part) {
  static const std::map<std::string, HfSplitter::Behavior> behaviors = {
      {"Removed", HfSplitter::Behavior::kRemoved},
      {"Isolated", HfSplitter::Behavior::kIsolated},
      {"MergedWithPrevious", HfSplitter::Behavior::kMergedWithPrevious},
      {"MergedWithNext", HfSplitter::Behavior::kMergedWithNext},
      {"Contiguous", HfSplitter::Behavior::kContiguous}};
  const JsonValue name = part.At("behavior");
  const auto behavior = behaviors.find(name.Text());
  if (behavior == behaviors.end()) HfUnsupported(name, "`" + name.Text() + "`");
  return behavior->second;
}

void StepsReader::AddSplitter(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  if (steps_.byte_level && (type == "ByteLevel" || type == "Metaspace")) {
    throw HfRefused{part.place() + ": `" + type + "` behind `ByteLevel` is not supported"};
  }
  if (type == "Sequence") {
    for (const JsonValue& inner : HfParts(part.At("pretokenizers"), part.place()))
      AddSplitter(inner);
  } else if (type == "ByteLevel") {
    if (HfFlag(part, "add_prefix_space", true)) {
      steps_.splitters.push_back({.kind = HfSplitter::Kind::kPrefixSpace});
      steps_.needs_space = true;
    }
    if (HfFlag(part, "use_regex", true)) {
      AddSplit(MakeRegex(kGpt2Pattern, part), HfSplitter::Behavior::kIsolated, false);
    }
    steps_.byte_level = true;
  } else if (type == "Split") {
    const auto [literal, text] = HfPatternOf(part);
    AddSplit(MakeRegex(literal ? EscapeForRegex(text) : text, part), BehaviorOf(part),
             HfFlag(part, "invert"));
  } else if (type == "Punctuation") {
    AddSplit(MakeRegex(kPunctuation, part),
             part.Has("behavior") ? BehaviorOf(part) : HfSplitter::Behavior::kIsolated, false);
  } else if (type == "Whitespace") {
    AddSplit(MakeRegex(kWhitespace, part), HfSplitter::Behavior::kRemoved, /*invert=*/true);
  } else if (type == "WhitespaceSplit") {
    AddSplit(MakeRegex("\\s", part), HfSplitter::Behavior::kRemoved, false);
  } else if (type == "Digits") {
    AddSplit(MakeRegex(HfFlag(part, "individual_digits") ? "\\p{N}" : "\\p{N}+", part),
             HfSplitter::Behavior::kIsolated, false);
  } else if (type == "Metaspace") {
    const JsonValue replacement = part.At("replacement");
    HfSplitter s{.kind = HfSplitter::Kind::kMetaspace, .replacement = replacement.Text()};
    if (s.replacement.empty() || FirstCodePoint(s.replacement).bytes != s.replacement.size()) {
      replacement.Refuse("is no single character");
    }
    const auto given = part.Find("prepend_scheme");
    const std::string scheme = given                                    ? given->Text()
                               : HfFlag(part, "add_prefix_space", true) ? "always"
                                                                        : "never";
    if (scheme == "always") {
      s.prepend = HfSplitter::Prepend::kAlways;
    } else if (scheme == "first") {
      s.prepend = HfSplitter::Prepend::kFirst;
    } else if (scheme != "never") {
      HfUnsupported(*given, "`" + scheme + "`");
    }
    steps_.needs_space |= s.prepend == HfSplitter::Prepend::kAlways;
    if (HfFlag(part, "split", true)) {
      s.regex = MakeRegex(EscapeForRegex(s.replacement), part);
      s.behavior = HfSplitter::Behavior::kMergedWithNext;
    }
    steps_.splitters.push_back(std::move(s));
  } else {
    HfUnsupported(part, "`" + type + "`");
  }
}

HfSteps StepsReader::Read(const JsonValue& json) {
  if (const auto part = json.Find("normalizer")) AddNormalizer(*part);
  if (const auto part = json.Find("pre_tokenizer")) AddSplitter(*part);
  for (const HfNormalizer& n : steps_.normalizers) {
    steps_.whole |= n.kind == HfNormalizer::Kind::kPrepend || (n.regex && n.regex->looks_back());
  }
  bool splits = false;
  for (const HfSplitter& s : steps_.splitters) {
    splits |= s.regex.has_value();
    steps_.whole |= s.regex && s.regex->looks_back();
  }
  steps_.whole |= !splits;
  return std::move(steps_);
}

}  // namespace

uint32_t CharacterOfByte(unsigned char byte) {
  static const std::array<uint32_t, 256> characters = [] {
    std::array<uint32_t, 256> of{};
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      of[b] = printable ? b : next++;
    }
    return of;
  }();
  return characters[byte];
}

std::string_view Utf8OfByte(char byte) {
  static const std::array<std::string, 256> texts = [] {
    std::array<std::string, 256> of;
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t c = CharacterOfByte(static_cast<unsigned char>(b));  // Below U+0800.
      if (c >= 0x80) of[b] += static_cast<char>(0xc0 | c >> 6);
      of[b] += static_cast<char>(c < 0x80 ? c : 0x80 | (c & 0x3f));
    }
    return of;
  }();
  return texts[static_cast<unsigned char>(byte)];
}

HfSteps ReadHfSteps(const JsonValue& json) { return StepsReader().Read(json); }

}  // namespace fsdp
