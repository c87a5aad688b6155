#include "trainer/data/tokenizers/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "trainer/core/check.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080) != 0) break;
  }
  while (i < text.size() && static_cast<signed char>(text[i]) >= 0) ++i;
  return i;
}

// Whether no form joins `c`, or a part of it, with what stands before: it begins with no mark, and
// with no vowel or end of a Hangul syllable (Unicode 15, section 3.11 and table 3-12).
bool BeginsAnew(uint32_t c) {
  if (c < 0x80) return true;
  std::array<utf8proc_int32_t, 32> parts;  // Enough: the longest, U+FDFA, has 18.
  int boundary = 0;
  utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                          static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT),
                          &boundary);
  if (parts[0] >= 0x1160 && parts[0] <= 0x11ff) return false;
  switch (utf8proc_category(parts[0])) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return false;
    default:
      return true;
  }
}

}  // namespace

std::string_view WellFormed(std::string_view text, std::string& buffer) {
  size_t good = 0;  // All before it is well-formed.
  while (good < text.size()) {
    good += AsciiPrefix(text.substr(good));
    if (good == text.size()) break;
    const Utf8Part part = FirstUtf8Part(text.substr(good));
    if (!part.well_formed) break;
    good += part.bytes;
  }
  if (good == text.size()) return text;
  buffer.assign(text.substr(0, good));
  for (std::string_view rest = text.substr(good); !rest.empty();) {
    const Utf8Part part = FirstUtf8Part(rest);
    buffer += part.well_formed ? rest.substr(0, part.bytes) : kReplacement;
    rest.remove_prefix(part.bytes);
  }
  return buffer;
}

IllFormed CountIllFormed(std::string_view text, size_t begin, size_t end) {
  IllFormed found;
  size_t at = begin;
  // A part that began before `begin` is not ours. It began at the last byte that is no
  // continuation.
  for (size_t back = 1; back <= std::min<size_t>(3, begin); ++back) {
    if ((static_cast<unsigned char>(text[begin - back]) & 0xc0) == 0x80) continue;
    const size_t bytes = FirstUtf8Part(text.substr(begin - back)).bytes;
    if (bytes > back) at += bytes - back;
    break;
  }
  while (at < end) {
    const size_t ascii = AsciiPrefix(text.substr(at, end - at));
    at += ascii;
    found.characters += static_cast<int64_t>(ascii);
    if (at == end) break;
    const Utf8Part part = FirstUtf8Part(text.substr(at));
    if (!part.well_formed && found.count++ == 0) found.first = at;
    ++found.characters;
    at += part.bytes;
  }
  return found;
}

CodePoint FirstCodePoint(std::string_view text) {
  const auto at = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const uint32_t first = at(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | (at(1) & 0x3f), 2};
  if (first < 0xf0) return {(first & 0xf) << 12 | (at(1) & 0x3f) << 6 | (at(2) & 0x3f), 3};
  return {(first & 7) << 18 | (at(1) & 0x3f) << 12 | (at(2) & 0x3f) << 6 | (at(3) & 0x3f), 4};
}

CodePoint LastCodePoint(std::string_view text) {
  size_t begin = text.size() - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return FirstCodePoint(text.substr(begin));
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsWordCharacter(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200c || c == 0x200d;
  }
}

void AppendNormalized(std::string_view text, NormalForm form, std::string& out) {
  constexpr std::array<int, 4> kOptions = {UTF8PROC_STABLE | UTF8PROC_COMPOSE,
                                           UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
                                           UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                           UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
  // ASCII is itself in every form. The last of it may compose with what follows.
  size_t plain = AsciiPrefix(text);
  if (plain < text.size() && plain > 0) --plain;
  out += text.substr(0, plain);
  text.remove_prefix(plain);
  if (text.empty()) return;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(kOptions[static_cast<size_t>(form)]));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(mapped, std::free);
  if (n == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  FSDP_CHECK_LE(0, n);  // Well-formed text has no other error.
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(n));
}

void AppendNormalized(std::string_view text, NormalForm form, std::string& out,
                      std::vector<size_t>& from) {
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    do {
      end += FirstCodePoint(text.substr(end)).bytes;
    } while (end < text.size() && !BeginsAnew(FirstCodePoint(text.substr(end)).value));
    const std::string_view stretch = text.substr(begin, end - begin);
    const size_t before = out.size();
    AppendNormalized(stretch, form, out);
    const bool same = std::string_view(out).substr(before) == stretch;
    for (size_t i = 0; i < out.size() - before; ++i) from.push_back(begin + (same ? i : 0));
  }
}

}  // namespace fsdp
