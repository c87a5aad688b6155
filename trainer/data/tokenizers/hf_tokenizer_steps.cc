#include "trainer/data/tokenizers/hf_tokenizer_steps.h"

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
                              .invert = invert});
}

void StepsReader::AddSplitter(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  if (steps_.byte_level) {
    throw HfRefused{part.place() + ": `" + type + "` behind `ByteLevel` is not supported"};
  }
  if (type == "Sequence") {
    for (const JsonValue& inner : HfParts(part.At("pretokenizers"), part.place()))
      AddSplitter(inner);
  } else if (type == "ByteLevel") {
    steps_.byte_level = true;
    if (HfFlag(part, "add_prefix_space", true)) {
      steps_.splitters.push_back({.kind = HfSplitter::Kind::kPrefixSpace});
      steps_.needs_space = true;
    }
    if (HfFlag(part, "use_regex", true)) {
      AddSplit(MakeRegex(kGpt2Pattern, part), HfSplitter::Behavior::kIsolated, false);
    }
  } else if (type == "Split") {
    static const std::map<std::string, HfSplitter::Behavior> behaviors = {
        {"Removed", HfSplitter::Behavior::kRemoved},
        {"Isolated", HfSplitter::Behavior::kIsolated},
        {"MergedWithPrevious", HfSplitter::Behavior::kMergedWithPrevious},
        {"MergedWithNext", HfSplitter::Behavior::kMergedWithNext},
        {"Contiguous", HfSplitter::Behavior::kContiguous}};
    const auto [literal, text] = HfPatternOf(part);
    const JsonValue name = part.At("behavior");
    const auto behavior = behaviors.find(name.Text());
    if (behavior == behaviors.end()) HfUnsupported(name, "`" + name.Text() + "`");
    AddSplit(MakeRegex(literal ? EscapeForRegex(text) : text, part), behavior->second,
             HfFlag(part, "invert"));
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

HfSteps ReadHfSteps(const JsonValue& json) { return StepsReader().Read(json); }

}  // namespace fsdp
