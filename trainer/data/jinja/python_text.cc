#include "trainer/data/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "trainer/data/jinja/special_casing.h"
#include "trainer/data/unicode.h"

namespace fsdp::jinja {
namespace {

utf8proc_category_t Category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsCased(uint32_t c) {
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

// Stands within a word without a case of its own (Unicode 15, 3.13, D136).
bool IsCaseIgnorable(uint32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019 ||
             c == 0x2024 || c == 0x2027;
  }
}

const SpecialCase* Special(uint32_t c) {
  if (c < 0xdf) return nullptr;
  const auto* const found =
      std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), c,
                       [](const SpecialCase& a, uint32_t letter) { return a.letter < letter; });
  return found != std::end(kSpecialCases) && found->letter == c ? found : nullptr;
}

uint32_t Simple(utf8proc_int32_t (*map)(utf8proc_int32_t), uint32_t c) {
  return static_cast<uint32_t>(map(static_cast<utf8proc_int32_t>(c)));
}

void AppendUpper(uint32_t c, std::string& out) {
  if (const SpecialCase* special = Special(c)) {
    out += special->upper;
  } else {
    AppendUtf8(Simple(utf8proc_toupper, c), out);
  }
}

void AppendTitle(uint32_t c, std::string& out) {
  const SpecialCase* special = Special(c);
  if (special && special->title) {
    out += special->title;
  } else {
    AppendUtf8(Simple(utf8proc_totitle, c), out);
  }
}

// A sigma that ends a word has a form of its own.
bool IsFinalSigma(const std::vector<uint32_t>& text, size_t at) {
  size_t before = at;
  while (before > 0 && IsCaseIgnorable(text[before - 1])) --before;
  if (before == 0 || !IsCased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && IsCaseIgnorable(text[after])) ++after;
  return after == text.size() || !IsCased(text[after]);
}

void AppendLower(const std::vector<uint32_t>& text, size_t at, std::string& out) {
  const uint32_t c = text[at];
  if (c == 0x130) {
    out += "i\u0307";
  } else if (c == 0x3a3) {
    AppendUtf8(IsFinalSigma(text, at) ? 0x3c2 : 0x3c3, out);
  } else {
    AppendUtf8(Simple(utf8proc_tolower, c), out);
  }
}

bool EndsLine(uint32_t c) {
  return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// Ends of the white space that `text` begins with, and of what is none.
size_t SpaceEnd(std::string_view text, size_t at, bool space) {
  while (at < text.size()) {
    const CodePoint c = FirstCodePoint(text.substr(at));
    if (IsSpace(c.value) != space) break;
    at += c.bytes;
  }
  return at;
}
size_t SpaceBegin(std::string_view text, size_t end, bool space) {
  while (end > 0) {
    const CodePoint c = LastCodePoint(text.substr(0, end));
    if (IsSpace(c.value) != space) break;
    end -= c.bytes;
  }
  return end;
}

}  // namespace

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<signed char>(c) >= 0; });
}

size_t CodePoints(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

size_t ByteOffset(std::string_view text, size_t n) {
  size_t at = 0;
  for (; n > 0 && at < text.size(); --n) {
    ++at;
    while (at < text.size() && (text[at] & 0xc0) == 0x80) ++at;
  }
  return at;
}

std::vector<uint32_t> Decode(std::string_view text) {
  std::vector<uint32_t> all;
  all.reserve(text.size());
  while (!text.empty()) {
    const CodePoint c = FirstCodePoint(text);
    all.push_back(c.value);
    text.remove_prefix(c.bytes);
  }
  return all;
}

bool IsSpace(uint32_t c) { return (c >= 0x1c && c <= 0x1f) || IsWhiteSpace(c); }

bool IsPrintable(uint32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsAlpha(uint32_t c) {
  return IsCased(c) || Category(c) == UTF8PROC_CATEGORY_LM || Category(c) == UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(uint32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

int DecimalValue(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9' ? static_cast<int>(c - '0') : -1;
  if (!IsDecimal(c)) return -1;
  // Digits come in tens of one run; the five sets of U+1D7CE are the only ones without a gap.
  if (c >= 0x1d7ce && c <= 0x1d7ff) return static_cast<int>((c - 0x1d7ce) % 10);
  uint32_t zero = c;
  while (c - zero < 9 && IsDecimal(zero - 1)) --zero;
  return static_cast<int>(c - zero);
}

bool IsDigit(uint32_t c) {
  // Numeric_Type=Digit of Unicode 15.
  constexpr uint32_t kRanges[][2] = {
      {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
      {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
      {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
      {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
      {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
  if (c < 0x80) return c >= '0' && c <= '9';
  return IsDecimal(c) || std::any_of(std::begin(kRanges), std::end(kRanges),
                                     [c](const auto& r) { return c >= r[0] && c <= r[1]; });
}

bool IsAlnum(uint32_t c) {
  const auto category = Category(c);
  return IsAlpha(c) || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

std::string Upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const uint32_t c : Decode(text)) AppendUpper(c, out);
  return out;
}

std::string Lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const std::vector<uint32_t> all = Decode(text);
  for (size_t i = 0; i < all.size(); ++i) AppendLower(all, i, out);
  return out;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> all = Decode(text);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 0) {
      AppendTitle(all[i], out);
    } else {
      AppendLower(all, i, out);
    }
  }
  return out;
}

std::string Title(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> all = Decode(text);
  bool in_word = false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (in_word) {
      AppendLower(all, i, out);
    } else {
      AppendTitle(all[i], out);
    }
    in_word = IsCased(all[i]);
  }
  return out;
}

std::string SwapCase(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> all = Decode(text);
  for (size_t i = 0; i < all.size(); ++i) {
    if (Category(all[i]) == UTF8PROC_CATEGORY_LU) {
      AppendLower(all, i, out);
    } else if (Category(all[i]) == UTF8PROC_CATEGORY_LL) {
      AppendUpper(all[i], out);
    } else {
      AppendUtf8(all[i], out);
    }
  }
  return out;
}

bool IsUpper(std::string_view text) {
  bool any = false;
  for (const uint32_t c : Decode(text)) {
    if (!IsCased(c)) continue;
    if (Category(c) != UTF8PROC_CATEGORY_LU) return false;
    any = true;
  }
  return any;
}

bool IsLower(std::string_view text) {
  bool any = false;
  for (const uint32_t c : Decode(text)) {
    if (!IsCased(c)) continue;
    if (Category(c) != UTF8PROC_CATEGORY_LL) return false;
    any = true;
  }
  return any;
}

bool IsTitle(std::string_view text) {
  bool any = false, in_word = false;
  for (const uint32_t c : Decode(text)) {
    const bool lower = Category(c) == UTF8PROC_CATEGORY_LL;
    if (IsCased(c) && lower != in_word) return false;
    in_word = IsCased(c);
    any |= in_word;
  }
  return any;
}

std::string_view Strip(std::string_view text, const std::string* chars, Sides sides) {
  const std::vector<uint32_t> set = chars ? Decode(*chars) : std::vector<uint32_t>();
  const auto goes = [&](uint32_t c) {
    return chars ? std::find(set.begin(), set.end(), c) != set.end() : IsSpace(c);
  };
  while (sides.left && !text.empty()) {
    const CodePoint c = FirstCodePoint(text);
    if (!goes(c.value)) break;
    text.remove_prefix(c.bytes);
  }
  while (sides.right && !text.empty()) {
    const CodePoint c = LastCodePoint(text);
    if (!goes(c.value)) break;
    text.remove_suffix(c.bytes);
  }
  return text;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = FirstCodePoint(text.substr(at));
    const size_t end = at;
    at += c.bytes;
    if (!EndsLine(c.value)) continue;
    if (c.value == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> SplitSpace(std::string_view text, int64_t most) {
  std::vector<std::string_view> parts;
  size_t at = SpaceEnd(text, 0, true);
  while (at < text.size()) {
    if (most >= 0 && std::ssize(parts) == most) {
      parts.push_back(text.substr(at));
      break;
    }
    const size_t end = SpaceEnd(text, at, false);
    parts.push_back(text.substr(at, end - at));
    at = SpaceEnd(text, end, true);
  }
  return parts;
}

std::vector<std::string_view> RSplitSpace(std::string_view text, int64_t most) {
  std::vector<std::string_view> parts;
  size_t end = SpaceBegin(text, text.size(), true);
  while (end > 0) {
    if (most >= 0 && std::ssize(parts) == most) {
      parts.push_back(text.substr(0, end));
      break;
    }
    const size_t begin = SpaceBegin(text, end, false);
    parts.push_back(text.substr(begin, end - begin));
    end = SpaceBegin(text, begin, true);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view by, int64_t most) {
  std::vector<std::string_view> parts;
  while (most < 0 || std::ssize(parts) < most) {
    const size_t at = text.find(by);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + by.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> RSplitAt(std::string_view text, std::string_view by, int64_t most) {
  std::vector<std::string_view> parts;
  while (most < 0 || std::ssize(parts) < most) {
    const size_t at = text.rfind(by);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(at + by.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most) {
  std::string out;
  int64_t done = 0;
  size_t at = 0;
  if (from.empty()) {
    while (true) {
      if (most < 0 || done++ < most) out += to;
      if (at == text.size()) return out;
      const size_t bytes = FirstCodePoint(text.substr(at)).bytes;
      out += text.substr(at, bytes);
      at += bytes;
    }
  }
  while (most < 0 || done++ < most) {
    const size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  out += text.substr(at);
  return out;
}

std::string CodePointEscape(uint32_t c) {
  char escape[16];
  std::snprintf(escape, sizeof escape,
                c < 0x100     ? "\\x%02x"
                : c < 0x10000 ? "\\u%04x"
                              : "\\U%08x",
                c);
  return escape;
}

std::string Quoted(std::string_view text) {
  const bool both = text.find('\'') != std::string_view::npos;
  const char quote = both && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const CodePoint c = FirstCodePoint(text);
    if (c.value == static_cast<uint32_t>(quote) || c.value == '\\') {
      out += '\\';
      out += static_cast<char>(c.value);
    } else if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (IsPrintable(c.value)) {
      out += text.substr(0, c.bytes);
    } else {
      out += CodePointEscape(c.value);
    }
    text.remove_prefix(c.bytes);
  }
  return out + quote;
}

}  // namespace fsdp::jinja
