#include "trainer/recipe/types.h"

#include <charconv>
#include <cmath>

namespace fsdp::recipe {
namespace {

std::string Quoted(const std::string& word) { return "`" + word + "`"; }

std::string Join(const std::vector<std::string>& words, const std::string& last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " " + last + " " : ", ";
    text += words[i];
  }
  return text;
}

std::string DidYouMean(const std::string& word) { return "; did you mean " + Quoted(word) + "?"; }

// Shortest text that reads back to the same number, without trailing zeros.
std::string Show(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

bool IsPlain(const YamlNode& node, PlainType type) {
  return node.kind == YamlNode::Kind::kScalar && node.plain && ResolvePlain(node.text) == type;
}

// Empty where 64 bits do not hold it. `text` is a kInteger.
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

// Empty where it is not finite or a double does not hold it. `text` is a kNumber.
std::optional<double> ReadNumber(const std::string& text) {
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  const char* const end = text.data() + text.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

void RecipeReader::Mistake(const Place& place, const std::string& key, const std::string& message) {
  mistakes_.push_back({place, key, message});
  unusable_.insert(key);
}

void RecipeReader::Wrong(const YamlNode& node, const std::string& key, const std::string& want) {
  Mistake(node.place, key, "want " + want + ", got " + Describe(node));
}

void RecipeReader::UnknownKey(const YamlNode::Entry& entry, const std::string& prefix,
                              const std::vector<std::string>& siblings,
                              const std::map<std::string, std::string>& aliases) {
  std::string near;
  if (const auto alias = aliases.find(entry.key); alias != aliases.end()) near = alias->second;
  std::string elsewhere;
  if (near.empty()) {
    // The one key of that name in another section.
    int found = 0;
    for (const std::string& key : known_) {
      const size_t dot = key.rfind('.');
      if ((dot == std::string::npos ? key : key.substr(dot + 1)) != entry.key) continue;
      elsewhere = key;
      ++found;
    }
    if (found != 1) elsewhere.clear();
  }
  if (near.empty() && elsewhere.empty()) near = Nearest(entry.key, siblings);
  std::string message = "unknown key";
  if (!near.empty() || !elsewhere.empty()) {
    message += DidYouMean(near.empty() ? elsewhere : near);
  } else {
    message += "; known here: " + Join(siblings, "and");
  }
  Mistake(entry.place, prefix + entry.key, message);
  // Most likely the key that was meant is now missing: that would be no second mistake.
  if (!near.empty()) unusable_.insert(prefix + near);
}

void RecipeReader::Saw(const std::string& key, const Place& place, bool is_map) {
  if (is_map && maps_.count(key) > 0) return;
  places_[key] = place;
  if (is_map) {
    maps_.insert(key);
  } else {
    maps_.erase(key);
  }
}

void RecipeReader::ForgetBelow(const std::string& key) {
  std::erase_if(places_, [&](const auto& entry) {
    return entry.first.starts_with(key + ".") || entry.first.starts_with(key + "[");
  });
}

bool RecipeReader::Unusable(const std::string& key) const {
  if (unusable_.count("") > 0) return true;
  for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    if (unusable_.count(key.substr(0, dot)) > 0) return true;
  }
  // A list is as good as its items.
  const auto item = unusable_.lower_bound(key + "[");
  if (item != unusable_.end() && item->starts_with(key + "[")) return true;
  return unusable_.count(key) > 0;
}

std::string Describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kList:
      return "a list of " + std::to_string(node.items.size());
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kScalar:
      break;
  }
  std::string text = node.text;
  if (text.size() > 60) {
    size_t end = 57;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // UTF-8.
    text = text.substr(0, end) + "...";
  }
  const bool text_type = !node.plain || ResolvePlain(node.text) == PlainType::kText;
  return text_type ? "the text " + Quoted(text) : text;
}

Type<int64_t> Integer(int64_t min, int64_t max) {
  // An upper end that only says how many bits there are is named where it is the mistake.
  const bool bits =
      max == std::numeric_limits<int32_t>::max() || max == std::numeric_limits<int64_t>::max();
  const std::string at_most = "an integer of at most " + std::to_string(max);
  const std::string want =
      bits ? "an integer of at least " + std::to_string(min)
           : "an integer from " + std::to_string(min) + " to " + std::to_string(max);
  return {{{"type", "integer"}, {"minimum", min}, {"maximum", max}},
          [=](const YamlNode& node, const std::string& key, RecipeReader& reader, int64_t& value) {
            std::optional<int64_t> read;
            if (IsPlain(node, PlainType::kInteger)) {
              read = ReadInteger(node.text);
              if (bits && (read ? *read > max : node.text[0] != '-')) {
                reader.Wrong(node, key, at_most);
                return false;
              }
            }
            if (!read || *read < min || *read > max) {
              reader.Wrong(node, key, want);
              return false;
            }
            value = *read;
            return true;
          },
          [](const int64_t& value) { return Json(value); }};
}

Type<double> Number(Interval interval) {
  std::vector<std::string> bounds;
  Json schema = {{"type", "number"}};
  const auto bound = [&](const std::optional<double>& at, const char* words, const char* keyword) {
    if (!at) return;
    bounds.push_back(words + Show(*at));
    schema[keyword] = *at;
  };
  bound(interval.at_least, "of at least ", "minimum");
  bound(interval.above, "above ", "exclusiveMinimum");
  bound(interval.at_most, "of at most ", "maximum");
  bound(interval.below, "below ", "exclusiveMaximum");
  if (interval.fp32 && !interval.at_most && !interval.below) {
    schema["maximum"] = std::numeric_limits<float>::max();
  }
  const std::string want = "a number " + Join(bounds, "and");
  const auto inside = [interval](double value) {
    return !(interval.at_least && value < *interval.at_least) &&
           !(interval.above && value <= *interval.above) &&
           !(interval.at_most && value > *interval.at_most) &&
           !(interval.below && value >= *interval.below);
  };
  return {schema,
          [=](const YamlNode& node, const std::string& key, RecipeReader& reader, double& value) {
            if (!IsPlain(node, PlainType::kInteger) && !IsPlain(node, PlainType::kNumber)) {
              reader.Wrong(node, key, want);
              return false;
            }
            std::optional<double> read;
            if (!IsPlain(node, PlainType::kInteger)) {
              read = ReadNumber(node.text);
            } else if (const std::optional<int64_t> integer = ReadInteger(node.text)) {
              read = static_cast<double>(*integer);
            }
            if (!read) {
              reader.Wrong(node, key, "a finite number that fits in 64 bits");
              return false;
            }
            if (!inside(*read)) {
              reader.Wrong(node, key, want);
              return false;
            }
            if (interval.fp32 && std::abs(*read) > std::numeric_limits<float>::max()) {
              reader.Wrong(node, key, "a finite number that fits in 32 bits");
              return false;
            }
            if (interval.fp32 && !inside(static_cast<double>(static_cast<float>(*read)))) {
              reader.Wrong(node, key, want + " in 32 bits");
              return false;
            }
            value = *read + 0.0;  // -0 reads as 0.
            return true;
          },
          [](const double& value) { return Json(value); }};
}

Type<bool> Boolean() {
  return {{{"type", "boolean"}},
          [](const YamlNode& node, const std::string& key, RecipeReader& reader, bool& value) {
            if (!IsPlain(node, PlainType::kBool)) {
              reader.Wrong(node, key, "true or false");
              return false;
            }
            value = node.text[0] == 't' || node.text[0] == 'T';
            return true;
          },
          [](const bool& value) { return Json(value); }};
}

Type<bool> OnlyFalse() {
  const Type<bool> boolean = Boolean();
  return {
      {{"enum", {false}}},
      [boolean](const YamlNode& node, const std::string& key, RecipeReader& reader, bool& value) {
        bool read = false;
        if (!boolean.read(node, key, reader, read)) return false;
        if (read) {
          reader.Mistake(node.place, key, "`true`: " + std::string(kNotInThisVersion));
          return false;
        }
        value = false;
        return true;
      },
      boolean.write};
}

Type<std::string> Text() {
  return {
      {{"type", "string"}, {"minLength", 1}},
      [](const YamlNode& node, const std::string& key, RecipeReader& reader, std::string& value) {
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
        value = node.text;
        return true;
      },
      [](const std::string& value) { return Json(value); }};
}

Type<size_t> OneOfNames(std::vector<std::string> names,
                        std::function<bool(const std::string&)> is_later) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(Quoted(name));
  const std::string want = Join(quoted, "or");
  return {{{"enum", names}},
          [=](const YamlNode& node, const std::string& key, RecipeReader& reader, size_t& value) {
            if (node.kind == YamlNode::Kind::kScalar) {
              const auto found = std::find(names.begin(), names.end(), node.text);
              if (found != names.end()) {
                value = static_cast<size_t>(found - names.begin());
                return true;
              }
              if (is_later(node.text)) {
                reader.Mistake(
                    node.place, key,
                    Quoted(node.text) + ": " + kNotInThisVersion + " (want " + want + ")");
                return false;
              }
            }
            std::string message = "want " + want + ", got " + Describe(node);
            if (node.kind == YamlNode::Kind::kScalar) {
              const std::string near = Nearest(node.text, names);
              if (!near.empty()) message += DidYouMean(near);
            }
            reader.Mistake(node.place, key, message);
            return false;
          },
          [names](const size_t& index) { return Json(names.at(index)); }};
}

}  // namespace fsdp::recipe
