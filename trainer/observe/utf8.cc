#include "trainer/observe/utf8.h"

namespace fsdp {

size_t Utf8Length(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const auto at = [&](size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u;
  };
  const auto continues = [&](size_t i) { return (at(i) & 0xc0u) == 0x80u; };
  const unsigned first = at(0), second = at(1);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4 || !continues(1)) return 0;
  if (first < 0xe0) return 2;
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
  if (!continues(2)) return 0;
  if (first < 0xf0) return 3;
  if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
  return continues(3) ? 4 : 0;
}

std::string Printable(std::string_view bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  while (!bytes.empty()) {
    const size_t length = Utf8Length(bytes);
    const auto byte = static_cast<unsigned char>(bytes[0]);
    const bool c0 = length == 1 && (byte < 0x20 || byte == 0x7f) && byte != '\n' && byte != '\t';
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

}  // namespace fsdp
