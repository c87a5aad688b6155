#include "trainer/data/tokenizers/precompiled_charsmap.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr size_t kLongGrapheme = 6;  // Bytes.

// Bytes of the extended grapheme cluster (UAX 29) at the start of `text`.
size_t GraphemeBytes(std::string_view text) {
  CodePoint last = FirstCodePoint(text);
  size_t end = last.bytes;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    const CodePoint next = FirstCodePoint(text.substr(end));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state)) {
      break;
    }
    end += next.bytes;
    last = next;
  }
  return end;
}

}  // namespace

PrecompiledCharsmap::PrecompiledCharsmap(std::string_view bytes) {
  uint32_t size = 0;
  if (bytes.size() < sizeof(size)) throw std::invalid_argument("is cut");
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes.remove_prefix(sizeof(size));
  if (size > bytes.size() || size % sizeof(uint32_t) != 0 || size == 0) {
    throw std::invalid_argument("is cut");
  }
  trie_.resize(size / sizeof(uint32_t));
  std::memcpy(trie_.data(), bytes.data(), size);
  texts_ = bytes.substr(size);
  std::string buffer;
  if (WellFormed(texts_, buffer).data() != texts_.data()) {
    throw std::invalid_argument("has text that is no UTF-8");
  }
}

// The double-array of Darts-clone (s-yata/darts-clone, include/darts.h): bits 0 to 7 are a unit's
// label, 8 whether a value follows, 9 the scale of the offset in 10 to 30.
std::optional<std::string_view> PrecompiledCharsmap::Find(std::string_view text) const {
  const auto offset = [](uint32_t unit) { return size_t{unit >> 10} << ((unit & 1u << 9) >> 6); };
  size_t node = offset(trie_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    node ^= byte;
    if (node >= trie_.size() || (trie_[node] & (1u << 31 | 0xff)) != byte) break;
    const uint32_t unit = trie_[node];
    node ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    const size_t begin = node < trie_.size() ? trie_[node] & ((1u << 31) - 1) : texts_.size();
    if (begin >= texts_.size()) return std::nullopt;
    const size_t end = std::min(texts_.find('\0', begin), texts_.size());
    return std::string_view(texts_).substr(begin, end - begin);
  }
  return std::nullopt;
}

void PrecompiledCharsmap::Append(std::string_view text, std::string& out,
                                 std::vector<size_t>* from) const {
  const auto append = [&](size_t begin, std::string_view old, std::string_view replacement) {
    out += replacement;
    // Character i comes from character i; those in excess from the last one.
    for (size_t at = 0; from != nullptr && !replacement.empty();) {
      const size_t bytes = FirstCodePoint(replacement).bytes;
      from->insert(from->end(), bytes, begin + at);
      replacement.remove_prefix(bytes);
      const size_t next = at + FirstCodePoint(old.substr(at)).bytes;
      if (next < old.size()) at = next;
    }
  };
  for (size_t begin = 0, bytes = 0; begin < text.size(); begin += bytes) {
    bytes = GraphemeBytes(text.substr(begin));
    const std::string_view grapheme = text.substr(begin, bytes);
    if (bytes < kLongGrapheme) {
      if (const auto found = Find(grapheme)) {
        append(begin, grapheme, *found);
        continue;
      }
    }
    for (size_t at = 0, length = 0; at < bytes; at += length) {
      length = FirstCodePoint(grapheme.substr(at)).bytes;
      const std::string_view character = grapheme.substr(at, length);
      if (const auto found = Find(character)) {
        append(begin + at, character, *found);
        continue;
      }
      out += character;
      for (size_t i = 0; from != nullptr && i < length; ++i) from->push_back(begin + at + i);
    }
  }
}

std::optional<std::string> FromBase64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0, count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  return out;
}

std::string ToBase64(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < n ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) out += i <= n ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

}  // namespace fsdp
