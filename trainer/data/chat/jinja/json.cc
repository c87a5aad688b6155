#include "trainer/data/chat/jinja/json.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "trainer/data/tokenizers/unicode.h"

namespace fsdp::jinja {
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
