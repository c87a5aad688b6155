#include "trainer/recipe/types.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "trainer/core/nearest.h"
#include "trainer/core/paths.h"
#include "trainer/core/peers_words.h"
#include "trainer/core/units.h"
#include "trainer/recipe/hints.h"

namespace fsdp::recipe {
namespace {

bool IsPlain(const YamlNode& node, PlainType type) {
  return node.kind == YamlNode::Kind::kScalar && node.plain && ResolvePlain(node.text) == type;
}

// Empty where the number does not fit in 64 bits. `text` is a kInteger.
std::optional<int64_t> ReadInteger(const std::string& text) {
  const char* begin = text.data();
  const char* const end = begin + text.size();
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0o")) {
    base = text[1] == 'x' ? 16 : 8;
    begin += 2;
  } else if (*begin == '+') {
    ++begin;
  }
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value, base);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// Empty where the number is not finite or no double. `text` is a kNumber.
std::optional<double> ReadNumber(const std::string& text) {
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  const char* const end = text.data() + text.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

class IntegerType final : public TypeOf<int64_t> {
 public:
  IntegerType(int64_t min, int64_t max)
      : min_(min),
        max_(max),
        bits_(max == std::numeric_limits<int32_t>::max() ||
              max == std::numeric_limits<int64_t>::max()),
        want_(bits_ ? "an integer of at least " + std::to_string(min)
                    : "an integer from " + std::to_string(min) + " to " + std::to_string(max)) {}

  Json Schema() const override {
    return Json::Object({{"type", "integer"}, {"minimum", min_}, {"maximum", max_}});
  }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 int64_t& value) const override {
    std::optional<int64_t> read;
    if (IsPlain(node, PlainType::kInteger)) {
      read = ReadInteger(node.text);
      if (bits_ && (read ? *read > max_ : node.text[0] != '-')) {
        reader.Wrong(node, key, "an integer of at most " + std::to_string(max_));
        return false;
      }
    }
    if (!read || *read < min_ || *read > max_) {
      reader.Wrong(node, key, want_);
      return false;
    }
    value = *read;
    return true;
  }
  Json WriteValue(const int64_t& value) const override { return value; }

  const int64_t min_, max_;
  // An upper end that is only the width in bits is named where a number exceeds it.
  const bool bits_;
  const std::string want_;
};

class IntegersType final : public TypeOf<int64_t> {
 public:
  explicit IntegersType(std::vector<int64_t> values) : values_(std::move(values)) {
    std::vector<std::string> words;
    for (const int64_t value : values_) words.push_back(std::to_string(value));
    want_ = Join(words, "or");
  }

  Json Schema() const override { return Json::Object({{"enum", values_}}); }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 int64_t& value) const override {
    std::optional<int64_t> read;
    if (IsPlain(node, PlainType::kInteger)) read = ReadInteger(node.text);
    if (!read || std::find(values_.begin(), values_.end(), *read) == values_.end()) {
      reader.Wrong(node, key, want_);
      return false;
    }
    value = *read;
    return true;
  }
  Json WriteValue(const int64_t& value) const override { return value; }

  const std::vector<int64_t> values_;
  std::string want_;
};

// An integer of at least 1, or a text with a unit.
class WithUnitType final : public TypeOf<int64_t> {
 public:
  struct Words {
    const char *pattern, *want;  // A regular expression of texts; the values, for messages.
    Json examples;               // A list of texts.
  };
  using Parse = std::optional<int64_t> (*)(std::string_view text);
  WithUnitType(Words words, int64_t most, Parse parse)
      : words_(std::move(words)), parse_(parse), whole_(1, most) {}

  Json Schema() const override {
    const Json text = Json::Object(
        {{"type", "string"}, {"pattern", words_.pattern}, {"examples", words_.examples}});
    return AnyOfSchemas({whole_.Schema(), text});
  }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 int64_t& value) const override {
    if (node.kind == YamlNode::Kind::kScalar &&
        (!node.plain || ResolvePlain(node.text) == PlainType::kText)) {
      if (const std::optional<int64_t> number = parse_(node.text)) {
        value = *number;
        return true;
      }
    } else if (IsPlain(node, PlainType::kInteger)) {
      const std::optional<int64_t> number = ReadInteger(node.text);
      if (!number || *number > 0) return whole_.Read(node, key, reader, &value);
    }
    reader.Wrong(node, key, words_.want);
    return false;
  }
  Json WriteValue(const int64_t& value) const override { return value; }

  const Words words_;
  const Parse parse_;
  const IntegerType whole_;
};

class NumberType final : public TypeOf<double> {
 public:
  explicit NumberType(const Interval& interval) : interval_(interval) {
    std::vector<std::string> bounds;
    const auto bound = [&](const std::optional<double>& at, const char* words) {
      if (at) bounds.push_back(words + Shortest(*at));
    };
    bound(interval.at_least, "of at least ");
    bound(interval.above, "above ");
    bound(interval.at_most, "of at most ");
    bound(interval.below, "below ");
    want_ = "a number " + Join(bounds, "and");
  }

  Json Schema() const override {
    Json schema = Json::Object({{"type", "number"}});
    if (interval_.at_least) schema["minimum"] = *interval_.at_least;
    if (interval_.above) schema["exclusiveMinimum"] = *interval_.above;
    if (interval_.at_most) schema["maximum"] = *interval_.at_most;
    if (interval_.below) schema["exclusiveMaximum"] = *interval_.below;
    if (interval_.fp32 && !interval_.at_most && !interval_.below) {
      schema["maximum"] = std::numeric_limits<float>::max();
    }
    return schema;
  }

 private:
  bool Inside(double value) const {
    return !(interval_.at_least && value < *interval_.at_least) &&
           !(interval_.above && value <= *interval_.above) &&
           !(interval_.at_most && value > *interval_.at_most) &&
           !(interval_.below && value >= *interval_.below);
  }
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 double& value) const override {
    if (!IsPlain(node, PlainType::kInteger) && !IsPlain(node, PlainType::kNumber)) {
      reader.Wrong(node, key, want_);
      return false;
    }
    std::optional<double> read;
    if (!IsPlain(node, PlainType::kInteger)) {
      read = ReadNumber(node.text);
    } else if (const std::optional<int64_t> integer = ReadInteger(node.text)) {
      read = static_cast<double>(*integer);
    }
    if (!read) {
      const bool closed =
          (interval_.at_least || interval_.above) && (interval_.at_most || interval_.below);
      reader.Wrong(node, key, closed ? want_ : "a finite number that fits in 64 bits");
      return false;
    }
    if (!Inside(*read)) {
      reader.Wrong(node, key, want_);
      return false;
    }
    if (interval_.fp32 && std::abs(*read) > std::numeric_limits<float>::max()) {
      reader.Wrong(node, key, "a finite number that fits in 32 bits");
      return false;
    }
    if (interval_.fp32 && !Inside(static_cast<double>(static_cast<float>(*read)))) {
      reader.Wrong(node, key, want_ + " in 32 bits");
      return false;
    }
    value = *read + 0.0;  // -0 reads as 0.
    return true;
  }
  Json WriteValue(const double& value) const override { return value; }

  const Interval interval_;
  std::string want_;
};

class BooleanType final : public TypeOf<bool> {
 public:
  Json Schema() const override { return Json::Object({{"type", "boolean"}}); }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 bool& value) const override {
    if (!IsPlain(node, PlainType::kBool)) {
      reader.Wrong(node, key, "true or false");
      return false;
    }
    value = node.text[0] == 't' || node.text[0] == 'T';
    return true;
  }
  Json WriteValue(const bool& value) const override { return value; }
};

class TextType final : public TypeOf<std::string> {
 public:
  explicit TextType(bool is_path) : is_path_(is_path) {}

  Json Schema() const override {
    Json schema = Json::Object({{"type", "string"}, {"minLength", 1}});
    if (is_path_) schema["format"] = "path";
    return schema;
  }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 std::string& value) const override {
    if (node.kind != YamlNode::Kind::kScalar || node.text.empty()) {
      reader.Wrong(node, key, "text that is not empty");
      return false;
    }
    if (node.plain && ResolvePlain(node.text) != PlainType::kText) {
      reader.Wrong(node, key, "text (in quotes, where it looks like something else)");
      return false;
    }
    if (node.text.find('\0') != std::string::npos) {
      reader.Mistake(node.place, key, "text cannot hold a zero byte");
      return false;
    }
    std::string read = node.text;
    if (const std::string why = is_path_ ? ExpandHome(read) : ""; !why.empty()) {
      reader.Mistake(node.place, key, why);
      return false;
    }
    value = std::move(read);
    return true;
  }
  Json WriteValue(const std::string& value) const override { return value; }

  const bool is_path_;
};

// One of several names, for enums and texts.
struct Names {
  std::vector<std::string> names;
  Later later;

  // The index of the node's name; empty where it is none of them.
  std::optional<size_t> Read(const YamlNode& node, const std::string& key,
                             RecipeReader& reader) const {
    std::vector<std::string> quoted;
    for (const std::string& name : names) quoted.push_back(Quoted(name));
    const std::string want = Join(quoted, "or");
    const bool scalar = node.kind == YamlNode::Kind::kScalar;
    if (scalar) {
      const auto found = std::find(names.begin(), names.end(), node.text);
      if (found != names.end()) return found - names.begin();
      if (std::count(later.names.begin(), later.names.end(), node.text) > 0) {
        reader.Mistake(node.place, key,
                       Quoted(node.text) + ": " + later.why + " (want " + want + ")");
        return std::nullopt;
      }
    }
    constexpr size_t kFew = 12;
    const std::string got = "got " + Describe(node);
    std::string near(scalar ? FindPeersValue(key, node.text) : ""), hint;
    if (key == "model.family" && !near.empty()) {
      hint = ": " + Quoted(near) + " is what trains it";
    } else {
      if (near.empty() && scalar) near = Nearest(node.text, names);
      if (!near.empty()) hint = DidYouMean(near);
    }
    const bool says_all = hint.empty() || names.size() <= kFew;
    reader.Mistake(node.place, key, (says_all ? "want " + want + ", " : "") + got + hint);
    return std::nullopt;
  }
};

class TextsType final : public TypeOf<std::string> {
 public:
  explicit TextsType(Names names) : names_(std::move(names)) {}

  Json Schema() const override { return Json::Object({{"enum", names_.names}}); }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 std::string& value) const override {
    const std::optional<size_t> index = names_.Read(node, key, reader);
    if (index) value = names_.names[*index];
    return index.has_value();
  }
  Json WriteValue(const std::string& value) const override { return value; }

  const Names names_;
};

class EnumType final : public ValueType {
 public:
  EnumType(Names names, const EnumOps& ops) : names_(std::move(names)), ops_(ops) {}

  Json Schema() const override { return Json::Object({{"enum", names_.names}}); }
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* value) const override {
    const std::optional<size_t> index = names_.Read(node, key, reader);
    if (index) ops_.set(value, *index);
    return index.has_value();
  }
  Json Write(const void* value) const override { return names_.names.at(ops_.get(value)); }

 private:
  const Names names_;
  const EnumOps ops_;
};

}  // namespace

AnyType::AnyType(std::shared_ptr<const ValueType> type) : type_(std::move(type)) {}
AnyType::AnyType(const AnyType&) = default;
AnyType::~AnyType() = default;

Type<int64_t> Integer(int64_t min, int64_t max) {
  return Type<int64_t>(std::make_shared<IntegerType>(min, max));
}
Type<int64_t> OneOfIntegers(std::vector<int64_t> values) {
  return Type<int64_t>(std::make_shared<IntegersType>(std::move(values)));
}
Type<int64_t> Bytes() {
  return Type<int64_t>(std::make_shared<WithUnitType>(
      WithUnitType::Words{"^[0-9]+(\\.[0-9]+)? *([KMGTkmgt][Ii]?)?[Bb]$",
                          "bytes, at least 1, as in 10000000000, 10GB or 1.5GiB",
                          Json::List({"10GB", "1.5GiB", "512MiB"})},
      std::numeric_limits<int64_t>::max(), ParseBytes));
}

Type<int64_t> Duration() {
  return Type<int64_t>(std::make_shared<WithUnitType>(
      WithUnitType::Words{"^[0-9]+(\\.[0-9]+)? *[smhd]$",
                          "seconds, at least 1, as in 5400, 90m or 1.5h",
                          Json::List({"90m", "4h", "1.5d"})},
      std::numeric_limits<int32_t>::max(), ParseDuration));
}
Type<double> Number(const Interval& interval) {
  return Type<double>(std::make_shared<NumberType>(interval));
}
Type<bool> Boolean() { return Type<bool>(std::make_shared<BooleanType>()); }
Type<std::string> Text() { return Type<std::string>(std::make_shared<TextType>(false)); }
Type<std::string> Path() { return Type<std::string>(std::make_shared<TextType>(true)); }

Later::Later(std::initializer_list<const char*> list) : names(list.begin(), list.end()) {}
Later::Later(std::vector<std::string> list) : names(std::move(list)) {}

Type<std::string> OneOfTexts(std::vector<std::string> names, const Later& later) {
  return Type<std::string>(std::make_shared<TextsType>(Names{std::move(names), later}));
}

AnyType OneOfNames(std::vector<std::string> names, const Later& later, const EnumOps& ops) {
  return AnyType(std::make_shared<EnumType>(Names{std::move(names), later}, ops));
}

}  // namespace fsdp::recipe
