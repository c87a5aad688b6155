#include "trainer/data/chat/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>

#include "trainer/data/tokenizers/unicode.h"

namespace fsdp::jinja {
namespace {

utf8proc_category_t Category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsLetter(uint32_t c) {
  return Category(c) >= UTF8PROC_CATEGORY_LU && Category(c) <= UTF8PROC_CATEGORY_LO;
}

bool EndsLine(uint32_t c) {
  return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsPrintable(uint32_t c) {
  const auto category = Category(c);
  return c == ' ' || !(category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_ZS);
}

}  // namespace

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

std::string Upper(std::string_view text) {
  std::string out;
  for (const uint32_t c : Decode(text)) {
    // A letter whose capital is several letters folds to as many: the sharp s, the ligature fi.
    utf8proc_int32_t parts[4] = {static_cast<utf8proc_int32_t>(c)};
    utf8proc_ssize_t count = 1;
    if (c >= 0x80 && Category(c) != UTF8PROC_CATEGORY_LU) {
      count = utf8proc_decompose_char(parts[0], parts, 4, UTF8PROC_CASEFOLD, nullptr);
      if (count == 1) parts[0] = static_cast<utf8proc_int32_t>(c);
    }
    for (int i = 0; i < count; ++i) {
      AppendUtf8(static_cast<uint32_t>(utf8proc_toupper(parts[i])), out);
    }
  }
  return out;
}

std::string Lower(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> all = Decode(text);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == 0x130) {
      out += "i\u0307";
    } else if (all[i] == 0x3a3) {
      const bool begins = i == 0 || !IsLetter(all[i - 1]);
      const bool ends = i + 1 == all.size() || !IsLetter(all[i + 1]);
      out += ends && !begins ? "\u03c2" : "\u03c3";
    } else {
      const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(all[i]));
      AppendUtf8(static_cast<uint32_t>(lower), out);
    }
  }
  return out;
}

std::string_view Strip(std::string_view text, const std::string* chars, bool left, bool right) {
  const std::vector<uint32_t> set = chars ? Decode(*chars) : std::vector<uint32_t>();
  const auto goes = [&](uint32_t c) {
    return chars ? std::find(set.begin(), set.end(), c) != set.end() : IsSpace(c);
  };
  for (CodePoint c; left && !text.empty(); text.remove_prefix(c.bytes)) {
    c = FirstCodePoint(text);
    if (!goes(c.value)) break;
  }
  for (CodePoint c; right && !text.empty(); text.remove_suffix(c.bytes)) {
    c = LastCodePoint(text);
    if (!goes(c.value)) break;
  }
  return text;
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = FirstCodePoint(text.substr(at));
    if (EndsLine(c.value)) lines.push_back(text.substr(begin, at - begin));
    at += c.bytes;
    if (c.value == '\r' && at < text.size() && text[at] == '\n') ++at;
    if (EndsLine(c.value)) begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> Split(std::string_view text, const std::string* by, int64_t most) {
  std::vector<std::string_view> parts;
  if (!by) text = Strip(text, nullptr, true, false);
  while ((most < 0 || std::ssize(parts) < most) && (by || !text.empty())) {
    size_t end = by ? text.find(*by) : 0;
    if (end == std::string_view::npos) break;
    while (!by && end < text.size() && !IsSpace(FirstCodePoint(text.substr(end)).value)) {
      end += FirstCodePoint(text.substr(end)).bytes;
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(by ? end + by->size() : end);
    if (!by) text = Strip(text, nullptr, true, false);
  }
  if (by || !text.empty()) parts.push_back(text);
  return parts;
}

std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    size_t most) {
  std::string out;
  for (size_t at; most > 0 && (at = text.find(from)) != std::string_view::npos; --most) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out += text;
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
    } else if (c.value == '\n' || c.value == '\r' || c.value == '\t') {
      out += c.value == '\n' ? "\\n" : c.value == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c.value)) {
      out += text.substr(0, c.bytes);
    } else {
      char escape[16];
      const char* const format = c.value < 0x100     ? "\\x%02x"
                                 : c.value < 0x10000 ? "\\u%04x"
                                                     : "\\U%08x";
      std::snprintf(escape, sizeof escape, format, c.value);
      out += escape;
    }
    text.remove_prefix(c.bytes);
  }
  return out + quote;
}

}  // namespace fsdp::jinja
