// How values print.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "trainer/data/jinja/operators.h"
#include "trainer/data/jinja/python_text.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

void AppendRepr(const Value& value, std::string& out, Budget& budget) {
  budget.Charge();
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      out += "Undefined";
      return;
    case Kind::kNone:
      out += "None";
      return;
    case Kind::kBool:
      out += value.integer() != 0 ? "True" : "False";
      return;
    case Kind::kInt:
      out += std::to_string(value.integer());
      return;
    case Kind::kFloat:
      out += FloatRepr(value.number());
      return;
    case Kind::kText:
      if (value.safe()) out += "Markup(";
      out += Quoted(value.text());
      if (value.safe()) out += ')';
      return;
    case Kind::kList:
    case Kind::kTuple: {
      const bool list = value.Is(Kind::kList);
      out += list ? '[' : '(';
      bool first = true;
      for (const Value& item : value.items()) {
        if (!first) out += ", ";
        first = false;
        AppendRepr(item, out, budget);
      }
      if (!list && value.items().size() == 1) out += ',';
      out += list ? ']' : ')';
      return;
    }
    case Kind::kDict: {
      out += '{';
      bool first = true;
      for (const auto& [key, item] : value.dict().entries()) {
        if (!first) out += ", ";
        first = false;
        AppendRepr(key, out, budget);
        out += ": ";
        AppendRepr(item, out, budget);
      }
      out += '}';
      return;
    }
    case Kind::kObject:
      out += value.object().Repr(budget);
  }
}

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // The shortest digits that read back: d.ddde-XX.
  char digits[40];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
  std::string shortest(digits, end);
  const size_t e = shortest.find('e');
  const int exponent = std::atoi(shortest.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16)
    return shortest;  // Python's and C's exponents have two digits.
  const auto fixed =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed).ptr;
  std::string text(digits, fixed);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string Repr(const Value& value, Budget& budget) {
  budget.Text(static_cast<size_t>(value.extent().weight) * 16);
  std::string out;
  AppendRepr(value, out, budget);
  budget.Text(out.size());
  return out;
}

std::string Str(const Value& value, Budget& budget) {
  if (value.IsUndefined()) return "";
  if (value.IsText()) return value.text();
  return Repr(value, budget);
}

Value Escape(const Value& value, Budget& budget) {
  if (value.IsText() && value.safe()) return value;
  const std::string text = Str(value, budget);
  budget.Text(text.size() * 5);
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return Value::Text(std::move(out), true);
}

}  // namespace fsdp::jinja
