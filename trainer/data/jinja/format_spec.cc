#include "trainer/data/jinja/format_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "trainer/data/jinja/python_text.h"

namespace fsdp::jinja {
namespace {

constexpr int64_t kMostWidth = 1000;  // For a field's width and precision.

std::string Printf(const char* pattern, int precision, double value) {
  char text[2 * kMostWidth];
  const int size = std::snprintf(text, sizeof text, pattern, precision, value);
  if (size < 0 || size >= static_cast<int>(sizeof text)) throw Fault("formats too long a number");
  return text;
}

std::string WithGroups(const std::string& digits, char group) {
  const size_t whole = digits.find_first_not_of("0123456789");
  const size_t count = whole == std::string::npos ? digits.size() : whole;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (group != 0 && i > 0 && i < count && (count - i) % 3 == 0) out += group;
    out += digits[i];
  }
  return out;
}

std::string Magnitude(uint64_t value, char type) {
  const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  const char* const alphabet = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    digits.insert(digits.begin(), alphabet[value % base]);
    value /= base;
  } while (value > 0);
  return digits;
}

// A number without its sign.
std::string Digits(double value, const FormatSpec& spec) {
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  std::string text;
  switch (spec.type) {
    case 'f':
    case 'F':
      text = Printf("%.*f", precision, value);
      break;
    case 'e':
      text = Printf("%.*e", precision, value);
      break;
    case 'E':
      text = Printf("%.*E", precision, value);
      break;
    case 'g':
      text = Printf(spec.alternate ? "%#.*g" : "%.*g", precision, value);
      break;
    case 'G':
      text = Printf(spec.alternate ? "%#.*G" : "%.*G", precision, value);
      break;
    case '%':
      text = Printf("%.*f", precision, value * 100);
      break;
    default:
      throw Fault(std::string("formats a number by `") + spec.type + "`, which is not supported");
  }
  if (spec.group != 0) text = WithGroups(text, spec.group);
  return spec.type == '%' ? text + '%' : text;
}

std::string Padded(const std::string& sign, const std::string& digits, const FormatSpec& spec,
                   char standard, Budget& budget) {
  const char align = spec.align ? spec.align : standard;
  const auto length = static_cast<int64_t>(CodePoints(digits) + sign.size());
  const int64_t missing = std::max<int64_t>(spec.width - length, 0);
  budget.Text(digits.size() + static_cast<size_t>(missing) * spec.fill.size());
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string before, after;
  for (int64_t i = 0; i < left; ++i) before += spec.fill;
  for (int64_t i = left; i < missing; ++i) after += spec.fill;
  return align == '=' ? sign + before + digits + after : before + sign + digits + after;
}

std::string SignOf(bool negative, const FormatSpec& spec) {
  return negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
}

}  // namespace

int64_t TakeNumber(std::string_view& text) {
  int64_t number = 0;
  while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    number = number * 10 + (text[0] - '0');
    if (number > kMostWidth) {
      throw Fault("a format with a width or precision above " + std::to_string(kMostWidth));
    }
    text.remove_prefix(1);
  }
  return number;
}

std::string FormatInteger(int64_t value, const FormatSpec& spec, Budget& budget) {
  const uint64_t magnitude =
      value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string digits = WithGroups(Magnitude(magnitude, spec.type), spec.group);
  if (spec.precision > static_cast<int64_t>(digits.size())) {
    digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  }
  std::string sign = SignOf(value < 0, spec);
  if (spec.alternate && spec.type != 'd') sign += std::string("0") + spec.type;
  return Padded(sign, digits, spec, '>', budget);
}

std::string FormatFloat(double value, const FormatSpec& spec, Budget& budget) {
  if (!std::isfinite(value)) throw Fault("formats a number that is not finite");
  return Padded(SignOf(std::signbit(value), spec), Digits(std::fabs(value), spec), spec, '>',
                budget);
}

std::string FormatText(const std::string& text, const FormatSpec& spec, char standard,
                       Budget& budget) {
  const size_t end =
      spec.precision < 0 ? text.size() : ByteOffset(text, static_cast<size_t>(spec.precision));
  return Padded("", text.substr(0, end), spec, standard, budget);
}

}  // namespace fsdp::jinja
