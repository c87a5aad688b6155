#include "trainer/core/units.h"

#include <array>
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

std::string HumanDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995) return ThreeDigits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return ThreeDigits(seconds) + " s";
  if (seconds >= 1e9) return "?";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const auto two = [](int64_t big, char a, int64_t small, char b) {
    return Format("%lld%c%02lld%c", static_cast<long long>(big), a, static_cast<long long>(small),
                  b);
  };
  if (whole < 3600) return two(whole / 60, 'm', whole % 60, 's');
  if (whole < 86400) return two(whole / 3600, 'h', whole / 60 % 60, 'm');
  return two(whole / 86400, 'd', whole / 3600 % 24, 'h');
}

}  // namespace fsdp
