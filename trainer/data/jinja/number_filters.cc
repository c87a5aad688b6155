#include "trainer/data/jinja/number_filters.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/methods.h"
#include "trainer/data/jinja/objects.h"
#include "trainer/data/jinja/operators.h"
#include "trainer/data/jinja/python_text.h"
#include "trainer/data/unicode.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

// Decimal digits of any script as ASCII, white space at the ends off.
std::string PlainNumber(const std::string& text) {
  std::string out;
  for (const uint32_t c : Decode(Strip(text, nullptr, {}))) {
    const int digit = DecimalValue(c);
    if (digit >= 0) {
      out += static_cast<char>('0' + digit);
    } else {
      AppendUtf8(c, out);
    }
  }
  return out;
}

// Without the single underscores between digits; none where others stand there.
std::optional<std::string> WithoutUnderscores(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto digit = [&](size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
  }
  return out;
}

// int(text, base)
std::optional<int64_t> ParseInteger(const std::string& text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  std::string plain = PlainNumber(text);
  bool negative = false;
  if (!plain.empty() && (plain[0] == '-' || plain[0] == '+')) {
    negative = plain[0] == '-';
    plain.erase(0, 1);
  }
  if (plain.size() > 1 && plain[0] == '0') {
    const char letter = static_cast<char>(plain[1] | 0x20);
    const int of_prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (of_prefix != 0 && (base == of_prefix || base == 0)) {
      base = of_prefix;
      plain.erase(0, 2);
      if (!plain.empty() && plain[0] == '_') plain.erase(0, 1);
    } else if (base == 0 && plain.find_first_not_of("0_") != std::string::npos) {
      return std::nullopt;
    }
  }
  if (base == 0) base = 10;
  const std::optional<std::string> digits = WithoutUnderscores(plain);
  if (!digits || digits->empty()) return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), value,
                                            static_cast<int>(base));
  if (end != digits->data() + digits->size() || error == std::errc::invalid_argument) {
    return std::nullopt;
  }
  const uint64_t most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) + negative;
  if (error != std::errc() || value > most) {
    throw Fault("integer overflow: " + text.substr(0, 40) + " does not fit 64 bits");
  }
  return static_cast<int64_t>(negative ? 0 - value : value);
}

// float(text)
std::optional<double> ParseFloat(const std::string& text) {
  const std::optional<std::string> plain = WithoutUnderscores(PlainNumber(text));
  if (!plain || plain->empty()) return std::nullopt;
  std::string lower = Lower(*plain);
  const std::string word = lower.substr(lower[0] == '-' || lower[0] == '+' ? 1 : 0);
  const bool named = word == "inf" || word == "infinity" || word == "nan";
  if (!named && lower.find_first_not_of("0123456789+-.e") != std::string::npos) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return value;
}

Value Truncated(double value) {
  if (std::fabs(value) >= 9.2e18) {
    throw Fault("integer overflow: " + FloatRepr(value) + " does not fit 64 bits");
  }
  return Value::Int(static_cast<int64_t>(value));
}

}  // namespace

Value IntFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("int", arguments, {"default", "base"});
  Value standard = given.Has(0) ? given[0] : Value::Int(0);
  machine.budget().Charge(value.extent().weight);
  if (value.IsUndefined()) RefuseUndefined(value);
  if (value.IsInteger()) return Value::Int(value.integer());
  if (value.Is(Kind::kFloat)) {
    if (std::isinf(value.number())) throw Fault("an infinite number has no integer");
    return std::isnan(value.number()) ? standard : Truncated(value.number());
  }
  if (!value.IsText()) return standard;
  if (const std::optional<int64_t> whole = ParseInteger(value.text(), given.Integer(1, 10))) {
    return Value::Int(*whole);
  }
  const std::optional<double> number = ParseFloat(value.text());
  return number && std::isfinite(*number) ? Truncated(*number) : standard;
}

Value FloatFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("float", arguments, {"default"});
  Value standard = given.Has(0) ? given[0] : Value::Float(0);
  machine.budget().Charge(value.extent().weight);
  if (value.IsUndefined()) RefuseUndefined(value);
  if (value.IsNumber()) return Value::Float(value.number());
  if (!value.IsText()) return standard;
  const std::optional<double> number = ParseFloat(value.text());
  return number ? Value::Float(*number) : standard;
}

Value AbsFilter(Machine& /*machine*/, const Value& value, Arguments& arguments) {
  const Parameters given("abs", arguments, {});
  if (value.Is(Kind::kFloat)) return Value::Float(std::fabs(value.number()));
  if (!value.IsInteger()) throw Fault(std::string("`abs` wants a number, got ") + TypeName(value));
  return value.integer() < 0 ? Negate(value) : Value::Int(value.integer());
}

Value RoundFilter(Machine& /*machine*/, const Value& value, Arguments& arguments) {
  const Parameters given("round", arguments, {"precision", "method"});
  const std::string method = given.Has(1) ? given.Text(1) : "common";
  if (!value.IsNumber()) {
    throw Fault(std::string("`round` wants a number, got ") + TypeName(value));
  }
  const int64_t precision = given.Integer(0, 0);
  if (precision < 0 || precision > 300) throw Fault("`round` wants a precision from 0 to 300");
  if (method == "common") {
    if (value.IsInteger()) return Value::Int(value.integer());
    if (!std::isfinite(value.number())) return value;
    char text[1024];  // Rounded as Python does it: from the exact value, ties to even.
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), value.number());
    return Value::Float(std::strtod(text, nullptr));
  }
  if (method != "ceil" && method != "floor") {
    throw Fault("`round` knows common, ceil and floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.number() * scale;
  if (!std::isfinite(scaled)) throw Fault("`round` wants a number that is finite");
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value LengthFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("length", arguments, {});
  if (value.IsText()) machine.budget().Charge(value.extent().weight);
  return Value::Int(Length(value));
}

Value DefaultFilter(Machine& /*machine*/, const Value& value, Arguments& arguments) {
  const Parameters given("default", arguments, {"default_value", "boolean"});
  const bool takes = value.IsUndefined() || (given.Flag(1, false) && !Truth(value));
  if (!takes) return value;
  return given.Has(0) ? given[0] : Value::Text("");
}

Value AttrFilter(Machine& /*machine*/, const Value& value, Arguments& arguments) {
  const Parameters given("attr", arguments, {"name"}, 1);
  if (value.IsUndefined()) RefuseUndefined(value);
  Value found = FindAttribute(value, given.Text(0));
  if (!found.Is(Kind::kMissing)) return found;
  return Value::Undefined(std::string("a ") + TypeName(value) + " has no such attribute");
}

}  // namespace fsdp::jinja
