#include "trainer/core/utf8.h"

#include <algorithm>

namespace fsdp {

Utf8Part FirstUtf8Part(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned first = at(0);
  if (first < 0x80) return {1, true};
  if (first < 0xc2 || first > 0xf4) return {1, false};
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) return {i, false};
    unsigned low = 0x80, high = 0xbf;
    if (i == 1) {  // No overlong forms, no surrogates, nothing past U+10FFFF.
      if (first == 0xe0) low = 0xa0;
      if (first == 0xed) high = 0x9f;
      if (first == 0xf0) low = 0x90;
      if (first == 0xf4) high = 0x8f;
    }
    if (at(i) < low || at(i) > high) return {i, false};
  }
  return {length, true};
}

size_t Utf8Length(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const Utf8Part part = FirstUtf8Part(bytes);
  return part.well_formed ? part.bytes : 0;
}

namespace {

// `kept`: control characters that stay.
std::string Escaped(std::string_view bytes, std::string_view kept) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  while (!bytes.empty()) {
    const size_t length = Utf8Length(bytes);
    const auto byte = static_cast<unsigned char>(bytes[0]);
    const bool c0 = length == 1 && (byte < 0x20 || byte == 0x7f) &&
                    kept.find(bytes[0]) == std::string_view::npos;
    const bool c1 = byte == 0xc2 && length == 2 && static_cast<unsigned char>(bytes[1]) < 0xa0;
    const size_t taken = length == 0 ? 1 : length;
    if (length == 0 || c0 || c1) {
      for (const unsigned char b : bytes.substr(0, taken)) {
        out += {'\\', 'x', kHex[b >> 4], kHex[b & 15]};
      }
    } else {
      out += bytes.substr(0, taken);
    }
    bytes.remove_prefix(taken);
  }
  return out;
}

}  // namespace

std::string Printable(std::string_view bytes) { return Escaped(bytes, "\n\t"); }

std::string WithShortNumbers(std::string_view text) {
  constexpr size_t kMost = 40, kShown = 20;
  std::string brief;
  while (!text.empty()) {
    const size_t first = std::min(text.find_first_of("0123456789"), text.size());
    brief += text.substr(0, first);
    text.remove_prefix(first);
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    brief += digits > kMost ? std::string(text.substr(0, kShown)) + "..."
                            : std::string(text.substr(0, digits));
    text.remove_prefix(digits);
  }
  return brief;
}

std::string PrintableName(std::string_view bytes) { return Escaped(bytes, ""); }

}  // namespace fsdp
