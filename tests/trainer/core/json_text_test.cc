#include "trainer/core/json_text.h"

#include <gtest/gtest.h>

#include <string>

#include "trainer/core/json_reader.h"
#include "trainer/core/json_tree.h"

namespace fsdp {
namespace {

// "2:5: reason", or "".
std::string FaultOf(const std::string& text) {
  const auto fault = FindJsonFault(text);
  return fault ? std::to_string(fault->line) + ":" + std::to_string(fault->column) + ": " +
                     fault->reason
               : "";
}

TEST(JsonText, SaysWhyAndWhere) {
  const struct {
    std::string text, fault;
  } cases[] = {
      {"", "1:1: is empty"},
      {" \n ", "2:2: is empty"},
      {"{", "1:2: want a key in double quotes, got the end of the text"},
      {"{\"a\": 1,\n \"b\": }", "2:7: want a value, got '}'"},
      {"{\"a\": 1,}", "1:9: want a key in double quotes, got '}'"},
      {"[1,]", "1:4: want a value, got ']'"},
      {"{\"a\" 1}", "1:6: want `:` behind a key, got '1'"},
      {"{\"a\": 1 \"b\": 2}", "1:9: want `,` or `}` in an object, got '\"'"},
      {"[1 2]", "1:4: want `,` or `]` in a list, got '2'"},
      {"{'a': 1}", "1:2: want a key in double quotes, got '''"},
      {"{} {}", "1:4: nothing may follow the value, got '{'"},
      {"// c\n{}", "1:1: want a value, got '/'"},
      {"[tru]", "1:2: want a value, got 't'"},
      {"[nullx]", "1:6: nothing may follow the value, got 'x'"},
      {"[01]", "1:3: a number begins with 0"},
      {"[-]", "1:3: want a digit behind `-`, got ']'"},
      {"[1.]", "1:4: want a digit behind the point, got ']'"},
      {"[1e+]", "1:5: want a digit in the exponent, got ']'"},
      {"[+1]", "1:2: want a value, got '+'"},
      {"[1e999]", "1:2: the number is too large"},
      {"[NaN]", "1:2: NaN is no number of JSON"},
      {"[\n -Infinity]", "2:2: -Infinity is no number of JSON"},
      {"\"\\x\"", "1:3: want an escape such as \\n or \\\\, got 'x'"},
      {"\"\\u12g4\"", "1:6: want four hexadecimal digits behind \\u, got 'g'"},
      {"\"\xc3\xa4\\ud83dy\"", "1:3: \\ud83d is half of a character"},
      {"\"\\ud83d\\ud83d\\ude00\"", "1:2: \\ud83d is half of a character"},
      {"\"\\ude00\"", "1:2: \\ude00 is half of a character"},
      {"\"a\tb\"", "1:3: a string has the control character '\\x09': write it as an escape"},
      {"\"\xed\xa0\x80\"", "1:2: a string has bytes that are no UTF-8: '\\xed'"},
      {"\"abc", "1:5: the text ends inside a string"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 5\n",
       "1:1: is a pointer of Git LFS, not the file itself: `git lfs pull` in its directory fetches "
       "it"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(FaultOf(c.text), c.fault) << c.text;
    EXPECT_FALSE(TryParseJson(c.text)) << c.text;
  }
}

// Whatever the parser takes has no fault, and the other way round.
TEST(JsonText, AgreesWithTheParser) {
  const std::string parts[] = {
      "{",           "}",   "[",           "]",    ",", ":",  "\"a\"", "1",
      "-0.5",        "1e3", "true",        "null", " ", "\n", "NaN",   "\"\\ud83d\\ude00\"",
      "\"\\udc00\"", "2.",  "\xef\xbb\xbf"};
  uint64_t state = 7;
  int good = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string text;
    for (uint64_t n = 0; n <= (state >> 60) % 9; ++n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text += parts[(state >> 33) % std::size(parts)];
    }
    state = state * 6364136223846793005u + 1442695040888963407u;
    const bool parses = TryParseJson(text).has_value();
    good += parses ? 1 : 0;
    ASSERT_EQ(FaultOf(text).empty(), parses) << text << ": " << FaultOf(text);
  }
  EXPECT_GT(good, 100);
}

TEST(JsonText, ReadsWhatPythonWrites) {
  const std::string text =
      R"({"score": NaN, "list": [1, -Infinity, {"x": Infinity}], "half": "a\ud83dy",)"
      R"( "t\u0065xt": "b", "large": 1e999, "twice": NaN, "twice": 2})";
  const auto python = ReadPythonJson(text);
  ASSERT_TRUE(python);
  EXPECT_EQ(python->text, R"({"score": null, "list": [1, null, {"x": null}], "half": "a\ufffdy",)"
                          R"( "t\u0065xt": "b", "large": null, "twice": null, "twice": 2})");
  std::string odd;
  for (const auto& [member, what] : python->odd) {
    const JsonFault fault = FaultAt(text, what.at, what.reason);
    odd += member + " " + std::to_string(fault.column) + ": " + fault.reason + "\n";
  }
  EXPECT_EQ(odd,
            "half 67: \\ud83d is half of a character\n"
            "large 104: the number is too large\n"
            "list 28: -Infinity is no number of JSON\n"
            "score 11: NaN is no number of JSON\n");
  EXPECT_EQ(ReadPythonJson(R"({"t\u0065xt": NaN})")->odd.begin()->first, "text");
  EXPECT_EQ(ReadPythonJson(R"({"a": 1})")->odd.size(), 0u);
  for (const char* none : {"{\"a\": nan}", "{\"a\": NaN", "{NaN: 1}", "{\"a\": -NaN}"}) {
    EXPECT_FALSE(ReadPythonJson(none)) << none;
  }
}

TEST(JsonText, NumbersOfPythonAreTexts) {
  EXPECT_EQ(JsonOfPython(R"({"a": NaN, "b": [-Infinity, 1e999], "a": 2})"),
            R"({"a": "NaN", "b": ["-Infinity", "1e999"], "a": 2})");
  for (const char* same : {"{\"a\": 1.5}", "{\"a\": nan}", "no JSON", ""}) {
    EXPECT_EQ(JsonOfPython(same), same);
  }
}

TEST(JsonText, TimeGrowsWithTheLength) {
  std::string text = "[";
  for (int i = 0; i < 200'000; ++i) text += "NaN,";
  std::string members = "{";
  for (int i = 0; i < 100'000; ++i) members += "\"" + std::to_string(i) + "\": NaN,";
  EXPECT_EQ(ReadPythonJson(text + "1]")->odd.size(), 1u);
  EXPECT_EQ(ReadPythonJson(members + "\"a\": 1}")->odd.size(), 100'000u);
}

TEST(JsonText, ReadersSayIt) {
  struct Mistake {
    std::string what;
  };
  constexpr JsonErrors kErrors{.raise = [](const std::string& what) { throw Mistake{what}; },
                               .separator = " "};
  const auto error = [&](const std::string& path, const std::string& place) {
    try {
      ParseJson("{\"a\":\n 1,}", path, kErrors, place);
    } catch (const Mistake& mistake) {
      return mistake.what;
    }
    return std::string();
  };
  const std::string reason = "want a key in double quotes, got '}'";
  EXPECT_EQ(error("dir/a.json", ""), "dir/a.json:2:4: " + reason);
  EXPECT_EQ(error("dir/a", "b beside it"), "dir/a: b beside it:2:4: " + reason);
  EXPECT_EQ(error("", ""), "line 2, column 4: " + reason);
  std::string why;
  EXPECT_FALSE(JsonTree::Parse("{\"a\":\n 1,}", 100, &why));
  EXPECT_EQ(why, "line 2, column 4: " + reason);
}

}  // namespace
}  // namespace fsdp
