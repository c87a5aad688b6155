#include "trainer/data/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "trainer/core/utf8.h"
#include "trainer/data/jinja/operators.h"
#include "trainer/data/unicode.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;
using Json = nlohmann::ordered_json;

Value TextFromJson(const std::string& text) {
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Part part = FirstUtf8Part(rest);
    if (!part.well_formed) throw Fault("a text that is no UTF-8");
    rest.remove_prefix(part.bytes);
  }
  return Value::Text(text);
}

Value Convert(const Json& json, int depth) {
  if (depth > kMostDepth) {
    throw Fault("JSON that nests more than " + std::to_string(kMostDepth) + " deep");
  }
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        throw Fault("integer overflow: " + std::to_string(number) + " does not fit 64 bits");
      }
      return Value::Int(static_cast<int64_t>(number));
    }
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return TextFromJson(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      Values items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(Convert(item, depth + 1));
      return Value::List(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        dict.Set(TextFromJson(key), Convert(item, depth + 1));
      }
      return Value::Of(std::move(dict));
    }
    default:
      return Value::None();
  }
}

class Writer {
 public:
  Writer(const JsonFormat& format, Budget& budget) : format_(format), budget_(budget) {}

  void Write(const Value& value) {
    budget_.Charge();
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += value.integer() != 0 ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.integer());
        return;
      case Kind::kFloat:
        out_ += Number(value.number());
        return;
      case Kind::kText:
        WriteText(value.text());
        return;
      case Kind::kList:
      case Kind::kTuple:
        WriteList(value.items());
        return;
      case Kind::kDict:
        WriteDict(value.dict());
        return;
      default:
        throw Fault(std::string("has no JSON for ") + TypeName(value));
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  static std::string Number(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return FloatRepr(number);
  }

  void NewLine() {
    if (!format_.lines) return;
    budget_.Text(out_.size() / 64 + static_cast<size_t>(level_) * format_.indent.size());
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += format_.indent;
  }

  template <typename Elements, typename WriteOne>
  void WriteAll(char open, char close, const Elements& elements, WriteOne&& write) {
    out_ += open;
    if (elements.empty()) {
      out_ += close;
      return;
    }
    ++level_;
    bool first = true;
    for (const auto& element : elements) {
      if (!first) out_ += format_.between;
      first = false;
      budget_.Text(format_.between.size() + format_.colon.size());
      NewLine();
      write(element);
    }
    --level_;
    NewLine();
    out_ += close;
  }

  void WriteList(const Values& items) {
    WriteAll('[', ']', items, [this](const Value& item) { Write(item); });
  }

  void WriteDict(const Dict& dict) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [this](const Dict::Entry* a, const Dict::Entry* b) {
                         return Compare(Comparison::kLt, a->first, b->first, budget_);
                       });
    }
    WriteAll('{', '}', entries, [this](const Dict::Entry* entry) {
      WriteText(Key(entry->first));
      out_ += format_.colon;
      Write(entry->second);
    });
  }

  std::string Key(const Value& key) {
    switch (key.kind()) {
      case Kind::kText:
        return key.text();
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return key.integer() != 0 ? "true" : "false";
      case Kind::kInt:
        return std::to_string(key.integer());
      case Kind::kFloat:
        return Number(key.number());
      default:
        throw Fault(std::string("has no JSON for a key that is a ") + TypeName(key));
    }
  }

  void Unit(uint32_t unit) {
    char escape[16];
    std::snprintf(escape, sizeof escape, "\\u%04x", unit);
    out_ += escape;
  }

  void WriteText(std::string_view text) {
    budget_.Text(text.size());
    out_ += '"';
    while (!text.empty()) {
      const CodePoint c = FirstCodePoint(text);
      const char* const shorts = "\"\\\n\r\t\f\b";
      const char* const found =
          c.value > 0 && c.value < 0x80 ? std::strchr(shorts, static_cast<int>(c.value)) : nullptr;
      if (found) {
        out_ += '\\';
        out_ += "\"\\nrtfb"[found - shorts];
      } else if (c.value < 0x20 || (format_.ensure_ascii && c.value == 0x7f)) {
        Unit(c.value);
      } else if (format_.ensure_ascii && c.value >= 0x10000) {
        Unit(0xd800 + ((c.value - 0x10000) >> 10));
        Unit(0xdc00 + ((c.value - 0x10000) & 0x3ff));
      } else if (format_.ensure_ascii && c.value >= 0x80) {
        Unit(c.value);
      } else {
        out_ += text.substr(0, c.bytes);
      }
      text.remove_prefix(c.bytes);
    }
    out_ += '"';
  }

  const JsonFormat& format_;
  Budget& budget_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

Value FromJson(const Json& json) { return Convert(json, 0); }

std::string ToJson(const Value& value, const JsonFormat& format, Budget& budget) {
  budget.Charge(value.extent().weight);
  Writer writer(format, budget);
  writer.Write(value);
  std::string text = writer.Take();
  budget.Text(text.size());
  return text;
}

}  // namespace fsdp::jinja
