#include "trainer/core/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace fsdp {
namespace {

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char buffer[64];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof(buffer), format, args);
  va_end(args);
  return buffer;
}

// Rounds as it prints: 9.995 is "10.0", not "10.00".
std::string ThreeDigits(double value) {
  const double size = std::fabs(value);
  return Format("%.*f", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, value);
}

template <size_t N>
std::string Scaled(double value, double base, const std::array<const char*, N>& units) {
  size_t unit = 0;
  // 999.5 would print as 1000 of a unit.
  while (unit + 1 < N && std::fabs(value) >= (base == 1000 ? 999.5 : base)) value /= base, ++unit;
  if (std::fabs(value) >= 9999.5) return Format("%.2e", value * std::pow(base, unit));
  return (unit == 0 ? Format("%.0f", value) : ThreeDigits(value)) + units[unit];
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return Scaled(static_cast<double>(bytes), 1024, kUnits);
}

std::string HumanCount(double count) {
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "B", "T"};
  return std::isfinite(count) ? Scaled(count, 1000, kUnits) : "?";
}

std::string HumanRate(double value) {
  if (!(std::fabs(value) < 999.5)) return HumanCount(value);
  if (value == 0) return "0";
  return std::fabs(value) < 9.995 ? Format("%#.3g", value) : ThreeDigits(value);
}

std::string HumanDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995) return ThreeDigits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return ThreeDigits(seconds) + " s";
  if (seconds >= 1e9) return Format("%.3g y", seconds / 31557600);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const auto two = [](int64_t big, char a, int64_t small, char b) {
    return Format("%lld%c%02lld%c", static_cast<long long>(big), a, static_cast<long long>(small),
                  b);
  };
  if (whole < 3600) return two(whole / 60, 'm', whole % 60, 's');
  if (whole < 86400) return two(whole / 3600, 'h', whole / 60 % 60, 'm');
  return two(whole / 86400, 'd', whole / 3600 % 24, 'h');
}

std::string Shortest(double value) {
  if (std::isnan(value)) return "nan";
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

std::string FixedPoint(double value, int decimals) {
  if (std::isnan(value)) return "nan";  // Its sign, which printf shows, means nothing.
  return Format(std::fabs(value) < 1e7 ? "%.*f" : "%.*e", decimals, value);
}

std::string Grouped(int64_t value) {
  std::string text = std::to_string(value);
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first; at -= 3) text.insert(at, ",");
  return text;
}

std::optional<int64_t> ParseBytes(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string unit;
  for (const char* at = stop; at != end; ++at) {
    if (*at == ' ' && unit.empty()) continue;
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*at)));
  }
  constexpr std::string_view kPrefixes = "kmgt";
  double scale = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = kPrefixes.find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (rest != "b" && rest != "ib")) return std::nullopt;
    scale = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = value * scale;
  if (!(bytes >= 1 && bytes < 0x1p63)) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::optional<int64_t> ParseDuration(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  std::string_view unit(stop, static_cast<size_t>(end - stop));
  while (unit.starts_with(" ")) unit.remove_prefix(1);
  if (error != std::errc() || unit.size() != 1) return std::nullopt;
  constexpr std::string_view kUnits = "smhd";
  constexpr double kSeconds[] = {1, 60, 3600, 86400};
  const size_t which = kUnits.find(unit[0]);
  if (which == std::string_view::npos) return std::nullopt;
  const double seconds = value * kSeconds[which];
  if (!(seconds >= 1 && seconds < 0x1p31)) return std::nullopt;
  return static_cast<int64_t>(seconds);
}

std::string Counted(int64_t count, std::string_view noun) {
  std::string text = std::to_string(count);
  return text.append(" ").append(noun).append(count == 1 ? "" : "s");
}

}  // namespace fsdp
