// Patterns in Oniguruma's spelling, against the pieces that `tokenizers` makes of hard text with
// them (tools/reference/tokenizer_files.py).
#include "trainer/data/tokenizers/regex.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/hard_text.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

std::vector<std::string> Texts() {
  const std::string raw = testing::HardText(3, 60'000);
  std::vector<std::string> texts;
  std::string buffer;
  for (size_t at = 0; at < raw.size(); at += 300) {
    texts.emplace_back(WellFormed(std::string_view(raw).substr(at, 300), buffer));
  }
  return texts;
}

// Where the pieces of Split begin and end: Isolated, then Removed, as pre_tokenizers.Split has
// them.
std::vector<int32_t> Ranges(const Regex& regex, const std::vector<std::string>& texts) {
  std::vector<int32_t> out;
  Regex::Scratch scratch;
  for (const bool isolated : {true, false}) {
    for (const std::string& text : texts) {
      const auto add = [&](size_t begin, size_t end) {
        if (begin == end) return;
        out.push_back(static_cast<int32_t>(begin));
        out.push_back(static_cast<int32_t>(end));
      };
      size_t done = 0, from = 0;
      Regex::Match match;
      while (from <= text.size() && regex.Find(text, from, scratch, match)) {
        add(done, match.begin);
        if (isolated) add(match.begin, match.end);
        done = from = match.end;
        if (match.begin != match.end) continue;
        if (from == text.size()) break;
        from += FirstCodePoint(std::string_view(text).substr(from)).bytes;
      }
      add(done, text.size());
      out.push_back(-1);
    }
  }
  return out;
}

TEST(Regex, MatchesAsOnigurumaDoes) {
  std::ifstream file("tests/fixtures/tokenizers/patterns.json");
  const nlohmann::json patterns = nlohmann::json::parse(file);
  const std::vector<std::string> texts = Texts();
  int matched = 0, refused = 0;
  for (const auto& [pattern, want] : patterns.items()) {
    SCOPED_TRACE(pattern);
    std::string error;
    try {
      const std::vector<int32_t> ranges = Ranges(Regex(pattern), texts);
      uint64_t hash = 0xCBF29CE484222325;
      for (const int32_t value : ranges) {
        for (int shift = 0; shift < 32; shift += 8) {
          hash = (hash ^ (static_cast<uint32_t>(value) >> shift & 0xff)) * 0x100000001B3;
        }
      }
      char text[17];
      std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
      EXPECT_EQ(text, want.value("hash", "an error"));
      ++matched;
    } catch (const std::invalid_argument& exception) {
      error = exception.what();
      ++refused;
    }
    const std::string part = want.value("refused", "");
    EXPECT_EQ(part.empty(), error.empty()) << error;
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }
  EXPECT_GT(matched, 120);
  EXPECT_GT(refused, 6);
}

TEST(Regex, NamesWhatIsNoPattern) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a(", "missing closing parenthesis"},
      {"a)", "unmatched closing parenthesis"},
      {"ab|*", "* at byte 3 has nothing to repeat"},
      {"[z-a]", "range out of order in character class"},
      {"[ab", "missing terminating ] for character class"},
      {"[]a]", "empty brackets are not supported"},
      {"\\p{Klingon}", "\\p{Klingon} at byte 0 is not supported"},
      {"\\p{Script=Han}", "\\p{Script=Han} at byte 0 is not supported"},
      {"ab\\xe9", "\\xe9 at byte 2 is not supported"},
      {"a{3,2}", "{3,2} at byte 1 is not supported"},
      {"(?<=a+)b", "lookbehind assertion is not fixed length"},
      {"a\\", "ends in a backslash"},
      {"\xff", "is no UTF-8"},
  };
  for (const auto& [pattern, want] : cases) {
    try {
      const Regex regex(pattern);
      ADD_FAILURE() << pattern;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), want) << pattern;
    }
  }
}

// Matches of a part of a text depend on what is before it.
TEST(Regex, LooksBack) {
  for (const char* pattern : {"^a", "\\Aa", "a\\b", "(?<=a)b", "(?=a$)", "(?!\\z)"}) {
    EXPECT_TRUE(Regex(pattern).looks_back()) << pattern;
  }
  for (const char* pattern : {"\\s+$", "a(?=b)", "[^a]", "a\\z"}) {
    EXPECT_FALSE(Regex(pattern).looks_back()) << pattern;
  }
}

}  // namespace
}  // namespace fsdp
