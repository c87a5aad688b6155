#include "trainer/data/chat/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "trainer/data/tokenizers/unicode.h"

namespace fsdp::jinja {
namespace {

utf8proc_category_t Category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsLetter(uint32_t c) {
  return Category(c) >= UTF8PROC_CATEGORY_LU && Category(c) <= UTF8PROC_CATEGORY_LO;
}

bool EndsLine(uint32_t c) {
  return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsPrintable(uint32_t c) {
  const auto category = Category(c);
  return c == ' ' || !(category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_ZS);
}

}  // namespace

size_t CodePoints(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

size_t ByteOffset(std::string_view text, size_t n) {
  size_t at = 0;
  for (; n > 0 && at < text.size(); --n) {
    ++at;
    while (at < text.size() && (text[at] & 0xc0) == 0x80) ++at;
  }
  return at;
}

std::vector<uint32_t> Decode(std::string_view text) {
  std::vector<uint32_t> all;
  all.reserve(text.size());
  while (!text.empty()) {
    const CodePoint c = FirstCodePoint(text);
    all.push_back(c.value);
    text.remove_prefix(c.bytes);
  }
  return all;
}

bool IsSpace(uint32_t c) { return (c >= 0x1c && c <= 0x1f) || IsWhiteSpace(c); }

std::string Upper(std::string_view text) {
  std::string out;
  for (const uint32_t c : Decode(text)) {
    // A letter whose capital is several letters folds to as many: the sharp s, the ligature fi.
    utf8proc_int32_t parts[4] = {static_cast<utf8proc_int32_t>(c)};
    utf8proc_ssize_t count = 1;
    if (c >= 0x80 && Category(c) != UTF8PROC_CATEGORY_LU) {
      count = utf8proc_decompose_char(parts[0], parts, 4, UTF8PROC_CASEFOLD, nullptr);
      if (count == 1) parts[0] = static_cast<utf8proc_int32_t>(c);
    }
    for (int i = 0; i < count; ++i) {
      AppendUtf8(static_cast<uint32_t>(utf8proc_toupper(parts[i])), out);
    }
  }
  return out;
}

std::string Lower(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> all = Decode(text);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == 0x130) {
      out += "i\u0307";
    } else if (all[i] == 0x3a3) {
      const bool begins = i == 0 || !IsLetter(all[i - 1]);
      const bool ends = i + 1 == all.size() || !IsLetter(all[i + 1]);
      out += ends && !begins ? "\u03c2" : "\u03c3";
    } else {
      const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(all[i]));
      AppendUtf8(static_cast<uint32_t>(lower), out);
    }
  }
  return out;
}

std::string_view Strip(std::string_view text, const std::string* chars, bool left, bool right) {
  const std::vector<uint32_t> set = chars ? Decode(*chars) : std::vector<uint32_t>();
  const auto goes = [&](uint32_t c) {
    return chars ? std::find(set.begin(), set.end(), c) != set.end() : IsSpace(c);
  };
  for (CodePoint c; left && !text.empty(); text.remove_prefix(c.bytes)) {
    c = FirstCodePoint(text);
    if (!goes(c.value)) break;
  }
  for (CodePoint c; right && !text.empty(); text.remove_suffix(c.bytes)) {
    c = LastCodePoint(text);
    if (!goes(c.value)) break;
  }
  return text;
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = FirstCodePoint(text.substr(at));
    if (EndsLine(c.value)) lines.push_back(text.substr(begin, at - begin));
    at += c.bytes;
    if (c.value == '\r' && at < text.size() && text[at] == '\n') ++at;
    if (EndsLine(c.value)) begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> Split(std::string_view text, const std::string* by, int64_t most) {
  std::vector<std::string_view> parts;
  if (!by) text = Strip(text, nullptr, true, false);
  while ((most < 0 || std::ssize(parts) < most) && (by || !text.empty())) {
    size_t end = by ? text.find(*by) : 0;
    if (end == std::string_view::npos) break;
    while (!by && end < text.size() && !IsSpace(FirstCodePoint(text.substr(end)).value)) {
      end += FirstCodePoint(text.substr(end)).bytes;
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(by ? end + by->size() : end);
    if (!by) text = Strip(text, nullptr, true, false);
  }
  if (by || !text.empty()) parts.push_back(text);
  return parts;
}

std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    size_t most) {
  std::string out;
  for (size_t at; most > 0 && (at = text.find(from)) != std::string_view::npos; --most) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

std::string Quoted(std::string_view text) {
  const bool both = text.find('\'') != std::string_view::npos;
  const char quote = both && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const CodePoint c = FirstCodePoint(text);
    if (c.value == static_cast<uint32_t>(quote) || c.value == '\\') {
      out += '\\';
      out += static_cast<char>(c.value);
    } else if (c.value == '\n' || c.value == '\r' || c.value == '\t') {
      out += c.value == '\n' ? "\\n" : c.value == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c.value)) {
      out += text.substr(0, c.bytes);
    } else {
      char escape[16];
      const char* const format = c.value < 0x100     ? "\\x%02x"
                                 : c.value < 0x10000 ? "\\u%04x"
                                                     : "\\U%08x";
      std::snprintf(escape, sizeof escape, format, c.value);
      out += escape;
    }
    text.remove_prefix(c.bytes);
  }
  return out + quote;
}

namespace {

using Kind = Value::Kind;
using Json = nlohmann::ordered_json;

Value TextFromJson(const std::string& text) {
  if (CountIllFormed(text, 0, text.size()).count > 0) throw Fault("a text that is no UTF-8");
  return Value::Text(text);
}

Value Convert(const Json& json, int depth) {
  if (depth > kMostDepth) {
    throw Fault("JSON that nests more than " + std::to_string(kMostDepth) + " deep");
  }
  if (json.is_null()) return Value::None();
  if (json.is_boolean()) return Value::Bool(json.get<bool>());
  if (json.is_number_float()) return Value::Float(json.get<double>());
  if (json.is_string()) return TextFromJson(json.get_ref<const std::string&>());
  if (json.is_number()) {
    const auto number = json.get<int64_t>();
    if (!json.is_number_unsigned() || number >= 0) return Value::Int(number);
    throw Fault("integer overflow: " + json.dump() + " does not fit 64 bits");
  }
  if (json.is_array()) {
    Values items;
    for (const Json& item : json) items.push_back(Convert(item, depth + 1));
    return Value::List(std::move(items));
  }
  Dict dict;
  for (const auto& [key, item] : json.items()) {
    dict.Set(TextFromJson(key), Convert(item, depth + 1));
  }
  return Value::Of(std::move(dict));
}

class Writer {
 public:
  Writer(bool ensure_ascii, int64_t indent, Budget& budget)
      : ensure_ascii_(ensure_ascii), indent_(indent), budget_(budget) {}

  std::string Run(const Value& value) {
    Write(value);
    return std::move(out_);
  }

 private:
  void Write(const Value& value) {
    budget_.Charge();
    if (value.IsText()) return WriteText(value.text());
    if (value.IsSequence()) {
      return WriteAll('[', ']', value.items(), [this](const Value& item) { Write(item); });
    }
    if (value.IsDict()) {
      return WriteAll('{', '}', value.dict().entries(), [this](const Dict::Entry& entry) {
        WriteText(Str(entry.first, budget_));
        out_ += ": ";
        Write(entry.second);
      });
    }
    const double number = value.Is(Kind::kFloat) ? value.number() : 0;
    if (value.IsUndefined() || value.Is(Kind::kObject)) {
      throw Fault(std::string("has no JSON for ") + TypeName(value));
    }
    out_ += value.IsNone()          ? "null"
            : value.Is(Kind::kInt)  ? std::to_string(value.integer())
            : value.Is(Kind::kBool) ? (value.integer() != 0 ? "true" : "false")
            : std::isnan(number)    ? "NaN"
            : std::isinf(number)    ? (number < 0 ? "-Infinity" : "Infinity")
                                    : FloatRepr(number);
  }

  void NewLine() {
    if (indent_ < 0) return;
    budget_.CheckText(static_cast<size_t>(indent_));
    const size_t width = level_ * static_cast<size_t>(indent_);
    budget_.Text(out_.size() % 32 + width);
    out_.append(1, '\n').append(width, ' ');
  }

  template <typename Elements, typename WriteOne>
  void WriteAll(char open, char close, const Elements& elements, WriteOne&& write) {
    out_ += open;
    ++level_;
    for (const auto& element : elements) {
      if (&element != &elements.front()) out_ += indent_ < 0 ? ", " : ",";
      NewLine();
      write(element);
    }
    --level_;
    if (!elements.empty()) NewLine();
    out_ += close;
    budget_.CheckText(out_.size());
  }

  void WriteText(std::string_view text) {
    budget_.Text(text.size());
    out_ += '"';
    while (!text.empty()) {
      const CodePoint c = FirstCodePoint(text);
      constexpr std::string_view kShort = "\"\\\n\r\t\f\b";
      const size_t known = c.value < 0x80 ? kShort.find(text[0]) : std::string_view::npos;
      if (known != std::string_view::npos) {
        out_ += '\\';
        out_ += "\"\\nrtfb"[known];
      } else if (c.value >= 0x20 && (!ensure_ascii_ || c.value < 0x7f)) {
        out_ += text.substr(0, c.bytes);
      } else {
        const uint32_t far = c.value - 0x10000;
        char escape[16];  // Two units of UTF-16, or one.
        std::snprintf(escape, sizeof escape, c.value < 0x10000 ? "\\u%04x" : "\\u%04x\\u%04x",
                      c.value < 0x10000 ? c.value : 0xd800 + (far >> 10), 0xdc00 + (far & 0x3ff));
        out_ += escape;
      }
      text.remove_prefix(c.bytes);
    }
    out_ += '"';
  }

  const bool ensure_ascii_;
  const int64_t indent_;
  Budget& budget_;
  std::string out_;
  size_t level_ = 0;
};

}  // namespace

Value FromJson(const Json& json) { return Convert(json, 0); }

std::string ToJson(const Value& value, bool ensure_ascii, int64_t indent, Budget& budget) {
  return Writer(ensure_ascii, indent, budget).Run(value);
}

}  // namespace fsdp::jinja
