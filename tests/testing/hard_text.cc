#include "tests/testing/hard_text.h"

#include <array>
#include <cctype>
#include <string_view>
#include <vector>

namespace fsdp::testing {
namespace {

using std::string_view_literals::operator""sv;

struct Range {
  uint32_t start, size;
};
constexpr auto kScripts = std::to_array<Range>({{0x3B1, 25},
                                                {0x430, 32},
                                                {0x5D0, 27},
                                                {0x628, 19},
                                                {0x905, 53},
                                                {0x995, 20},
                                                {0xE01, 46},
                                                {0x3041, 86},
                                                {0x30A1, 90},
                                                {0x4E00, 0x51A6},
                                                {0xAC00, 11172},
                                                {0x10D0, 33},
                                                {0x561, 38},
                                                {0x1200, 73},
                                                {0xC0, 0x190},
                                                {0x10400, 80},
                                                {0x1D400, 85}});
constexpr auto kDigits = std::to_array<Range>({{0x30, 10},
                                               {0x30, 10},
                                               {0x660, 10},
                                               {0x966, 10},
                                               {0xB2, 2},
                                               {0xBC, 3},
                                               {0x2160, 41},
                                               {0x2460, 20},
                                               {0xFF10, 10}});
constexpr auto kSpaces =
    std::to_array<uint32_t>({0x20, 0x20, 0x20, 0x09, 0x0A, 0x0D, 0x0B, 0x0C, 0x85, 0xA0, 0x1680,
                             0x180E, 0x2003, 0x2028, 0x2029, 0x200B, 0x202F, 0x3000});
constexpr auto kEmoji = std::to_array<std::string_view>(
    {"\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466", "\U0001F1E9\U0001F1EA",
     "\U0001F44D\U0001F3FD", "1\uFE0F\u20E3", "\u2764\uFE0F", "\u00A9"});
constexpr auto kComposed = std::to_array<std::string_view>(
    {"\u212B", "\uFB01", "\uFDFA", "\uFF21", "e\u0301", "\u1100\u1161\u11A8", "\u0958",
     "a\u0323\u0302", "a\u0302\u0323", "\uAC00\u11A8", "\u1E9B\u0323", "\u0344", "\u2126"});
constexpr auto kWords = std::to_array<std::string_view>({"the",
                                                         "of",
                                                         "and",
                                                         "to",
                                                         "in",
                                                         "is",
                                                         "you",
                                                         "that",
                                                         "it",
                                                         "he",
                                                         "was",
                                                         "for",
                                                         "on",
                                                         "are",
                                                         "don't",
                                                         "I'LL",
                                                         "we've",
                                                         "They'Re",
                                                         "it's",
                                                         "'tis",
                                                         "o'clock",
                                                         "New",
                                                         "York",
                                                         "2024",
                                                         "3.14159",
                                                         "e.g.",
                                                         "CamelCase",
                                                         "snake_case",
                                                         "https://example.org/a?b=c&d=%20",
                                                         "x86_64"});
constexpr auto kSpecials = std::to_array<std::string_view>(
    {"<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "</s>", "<s>", "<unk>",
     "<|endof", "<|endoftext|", "<mask>", "  <mask>\t ", "word<mask>s", "[word]", " [word] ",
     "a[word]b", "vi\u1EBFX", "vie\u0302\u0301X", "<0x0A>", "\u2581"});
constexpr auto kContractions = std::to_array<std::string_view>(
    {"'s", "'S", "'ll", "'LL", "'Ve", "n't", "'\u017F", "'d", "'D", "'m", "'re", "'T"});
constexpr auto kCode = std::to_array<std::string_view>(
    {"for (int i = 0; i < n; ++i) {\n    x[i] += 1;\n}\n", "def f(x):\n\treturn x**2\n",
     "SELECT * FROM t WHERE a >= 10;\r\n", "\n\n\n", "    \n", "{\"k\": [1, 2.5, null]}",
     "<p class=\"x\">&amp;</p>", "# ==== #\n"});
constexpr auto kInvalid = std::to_array<std::string_view>(
    {"\xc0\x80"sv, "\xed\xa0\x80"sv, "\xf4\x90\x80\x80"sv, "\xe2\x82"sv, "\xf0\x9f\x98"sv, "\x80"sv,
     "\xff\xfe"sv, "\xf8\x88\x80\x80\x80"sv, "\xc3"sv, "\xe0\x9f\x80"sv, "\xf0\x8f\xbf\xbf"sv});

const std::vector<uint32_t>& Punctuation() {
  static const std::vector<uint32_t> marks = [] {
    std::vector<uint32_t> all;
    for (const Range r : {Range{0x21, 15}, {0x3A, 7}, {0x5B, 6}, {0x7B, 4}}) {
      for (uint32_t i = 0; i < r.size; ++i) all.push_back(r.start + i);
    }
    for (const uint32_t c : {0x201Cu, 0x201Du, 0x2018u, 0x2019u, 0x2014u, 0x2026u, 0x3002u, 0x3001u,
                             0xFF01u, 0xABu, 0xBFu, 0x2581u}) {
      all.push_back(c);
    }
    return all;
  }();
  return marks;
}

// splitmix64 (Steele, Lea, Flood 2014).
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint32_t Below(uint64_t n) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return static_cast<uint32_t>((z ^ z >> 31) % n);
  }
  template <typename List>
  const auto& Of(const List& list) {
    return list[Below(list.size())];
  }

 private:
  uint64_t state_;
};

void Append(uint32_t c, std::string& out) {
  const auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6), add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12), add(0x80 | (c >> 6 & 0x3F)), add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | c >> 18), add(0x80 | (c >> 12 & 0x3F)), add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  }
}

template <typename Table>
void Characters(Draws& d, const Table& table, uint32_t count, std::string& out) {
  const Range range = d.Of(table);
  for (uint32_t i = 0; i < count; ++i) Append(range.start + d.Below(range.size), out);
}

void Stretch(Draws& d, std::string& out) {
  const uint32_t kind = d.Below(24);
  const auto repeat = [&](uint32_t most, const auto& next) {
    for (uint32_t n = 1 + d.Below(most); n > 0; --n) Append(next(), out);
  };
  if (kind < 6) {
    const size_t at = out.size();
    repeat(12, [&] { return 0x61 + d.Below(26); });
    if (d.Below(8) == 0) out[at] = static_cast<char>(std::toupper(out[at]));
  } else if (kind < 8) {
    out += d.Of(kWords);
  } else if (kind < 11) {
    // The count is drawn before the script, as an argument in Python.
    const uint32_t count = 1 + d.Below(10);
    Characters(d, kScripts, count, out);
  } else if (kind == 11) {
    const uint32_t count = 1 + d.Below(8);
    Characters(d, kDigits, count, out);
  } else if (kind == 12) {
    repeat(6, [&] { return d.Of(Punctuation()); });
  } else if (kind == 13) {
    out.append(1 + d.Below(8), ' ');
  } else if (kind == 14) {
    repeat(6, [&] { return d.Of(kSpaces); });
  } else if (kind == 15) {
    if (d.Below(2)) {
      Append(0x1F600 + d.Below(80), out);
    } else {
      out += d.Of(kEmoji);
    }
  } else if (kind == 16) {
    Append(0x61 + d.Below(26), out);
    repeat(4, [&] { return 0x300 + d.Below(0x70); });
  } else if (kind == 17) {
    out += d.Of(kComposed);
  } else if (kind == 18) {
    repeat(3, [&] {
      const uint32_t c = d.Below(0x20);
      return c + (d.Below(3) == 0 ? 0x7F : 0);
    });
  } else if (kind == 19) {
    if (d.Below(2)) {
      out += d.Of(kInvalid);
    } else {
      for (uint32_t n = 1 + d.Below(4); n > 0; --n) out += static_cast<char>(0x80 + d.Below(0x80));
    }
  } else if (kind == 20) {
    out += d.Of(kSpecials);
  } else if (kind == 21) {
    out += d.Of(kContractions);
  } else if (kind == 22) {
    out += d.Of(kCode);
  } else {
    const uint32_t rare = d.Below(60);
    if (rare == 0) {
      for (uint32_t n = 1000 + d.Below(9000); n > 0; --n) Append(0x61 + d.Below(4), out);
    } else if (rare == 1) {
      out.append(100 + d.Below(3000), 'a');
    } else if (rare == 2) {
      const uint32_t count = 500 + d.Below(1000);
      Characters(d, kScripts, count, out);
    } else if (rare == 3) {
      out.append(100 + d.Below(2000), ' ');
    } else if (rare == 4) {
      Characters(d, kDigits, 300, out);
    } else {
      out += '-';
    }
  }
}

}  // namespace

std::string HardText(uint64_t seed, size_t size) {
  Draws draws(seed);
  std::string out;
  while (out.size() < size) {
    Stretch(draws, out);
    if (draws.Below(3) > 0) out += ' ';
  }
  return out;
}

}  // namespace fsdp::testing
