#include "trainer/data/text/text_format.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "trainer/core/errors.h"
#include "trainer/data/text/token_cache.h"
#include "trainer/data/text/tokenize.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {
namespace {

using testing::FreshDirectory;
using Strings = std::vector<std::string>;
constexpr auto kText = TextFormat::kText, kLines = TextFormat::kLines,
               kValues = TextFormat::kValues;

TEST(TextFormat, IsWhatAFileHolds) {
  const std::string lines = "{\"text\": \"a\", \"n\": NaN}\n\n  {\"text\": \"b\"}\r\n";
  for (const char* name : {"a.json", "a.jsonl", "a.ndjson", "a.json.gz", "a.jsonl.zst", "A.JSON",
                           "a", "a.txt", "a.csv", "a.parquet", "part-00000-of-00001"}) {
    EXPECT_EQ(FormatOf(name, lines), kLines) << name;
    EXPECT_EQ(FormatOf(name, "\xef\xbb\xbf" + lines), kLines) << name;
    EXPECT_EQ(FormatOf(name, "[\n {\"text\": \"]}\\\"\"}, {}]"), kValues) << name;
    EXPECT_EQ(FormatOf(name, "{\n \"text\": \"a\"\n}\n"), kValues) << name;
    EXPECT_EQ(FormatOf(name, "{\"text\": \"" + std::string(70'000, 'x') + "\"}\n"), kLines) << name;
  }
  // Prose, code and logs, whatever they begin with.
  for (const char* name : {"a.txt", "a.md", "a.py", "a.c", "a", "a.csv"}) {
    for (const char* text : {"Some text.\n", "", "{ int a; }\n", "{\"a\": 1} is a dictionary.\n",
                             "{\"event\": 1}\nand then prose\n", "[a link](there)\n", "[1, 2]\n",
                             "{% raw %}\n", "{'a': 1}\n", "{\"a\", \"b\"}\n", "x = {\"a\": 1}\n",
                             "{\n\"a\": {\n", "[[{\"a\": 1}]]\n"}) {
      EXPECT_EQ(FormatOf(name, text), kText) << name << ": " << text;
    }
  }
  // Names that promise JSON.
  for (const char* name : {"a.json", "a.jsonl", "a.ndjson.gz"}) {
    for (const char* text : {"Some text.\n", "{\"event\": 1}\nand then prose\n", "{\n\"a\": {\n"}) {
      EXPECT_EQ(FormatOf(name, text), kLines) << name << ": " << text;
    }
    EXPECT_EQ(FormatOf(name, "[1, 2]\n"), kValues) << name;
  }
}

// Three quarters decide: a broken line makes no text of JSON, nor an object JSON of a text.
TEST(TextFormat, IsWhatMostOfAFileIs) {
  const std::string object = "{\"text\": \"}[\\\"\"}", pretty = "{\n \"text\": \"a\"\n}";
  const struct {
    std::string text;
    TextFormat format;
  } cases[] = {
      {object + object + object, kValues},
      {object + " " + object + "\r" + object, kValues},
      {object + object + "\n" + object + "\n", kValues},
      {object + "\n" + pretty + "\n" + object, kValues},
      {object + "\n" + object + "\n" + object + "\n{\"text\": \"x\n" + object + "\n", kLines},
      {object + "\n" + object + "\n" + object + "\n{\"tex", kLines},
      {"// all\n" + object + "\n" + object + "\n", kLines},
      {object + ",\n" + object + ",\n", kLines},
      {"[" + object + ",\n " + object + ",\n {\"te", kValues},
      {"[" + object + ", " + object + "]\n[" + object + "]", kValues},
      {"[{\"a\": 1} for x in y]\nprint(x)\n", kText},
      {"[{\"a\": 1}, {\"b\": 2}].map(f);\nfunction f(x) { return x; }\n", kText},
      {"[{\"a\": 1}]: a note\n\nText goes on.\n", kText},
      {"{}\\LaTeX\n", kText},
      {"{\"a\": 1}\n" + std::string(80'000, 'x'), kText},
      {object + "\n{\"text\": \"" + std::string(80'000, 'x') + "\"}\n", kLines},
      {"[" + object + ",\n{\"text\":\n\"" + std::string(80'000, 'x') + "\"}]\n", kValues},
  };
  for (const auto& [text, format] : cases) {
    EXPECT_EQ(FormatOf("a", text), format) << text.substr(0, 200);
    if (format == kText) continue;
    EXPECT_EQ(FormatOf("a.json", text), format) << text.substr(0, 200);
  }
}

// One document for each object, in every dress; "x.txt" of prose stays itself.
class TextFiles : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& contents) {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << contents;
    return dir_ + "/" + name;
  }
  // The documents, each ended by a line feed, or what is said of them.
  std::string Read(const Strings& files, int64_t chunk_bytes = 1 << 20) {
    TokenizeOptions options;
    options.files = files;
    options.eot = 10;
    options.chunk_bytes = chunk_bytes;
    options.threads = 1;
    const auto tokenizer = OpenTokenizer("bytes");
    try {
      const auto tokens = OpenTextTokens(FreshDirectory("cache"), tokenizer, "bytes", options, {});
      std::vector<int32_t> ids(static_cast<size_t>(tokens->size()));
      tokens->Read(0, ids);
      return {ids.begin(), ids.end()};
    } catch (const DataError& error) {
      std::string what = error.what();
      for (size_t at; (at = what.find(dir_ + "/")) != std::string::npos;) {
        what.erase(at, dir_.size() + 1);
      }
      return what;
    }
  }
  const std::string dir_ = FreshDirectory("formats");
};

TEST_F(TextFiles, JsonIsReadUnderAnyName) {
  const std::string a = "{\"text\": \"a\", \"url\": \"u\"}",
                    b = "{\"url\": \"}\", \"text\": \"b\"}";
  const Strings dresses = {a + "\n" + b + "\n",
                           "[" + a + "," + b + "]",
                           "[\n  " + a + " ,\n\n  " + b + "\n]\n",
                           "{\n\"text\":\n\"a\"}\n{ \"text\"\n: \"b\" }",
                           a + b,
                           a + "\r" + b + "\r"};
  for (const std::string& dress : dresses) {
    for (const char* name : {"c4.json", "c4.ndjson", "c4.jsonl", "c4", "c4.txt", "c4.tsv"}) {
      EXPECT_EQ(Read({Write(name, dress)}), "a\nb\n") << name << ": " << dress;
    }
    const std::string c4 = Write("c4.json", dress);
    ASSERT_EQ(std::system(("gzip -kf " + c4).c_str()), 0);
    EXPECT_EQ(Read({c4 + ".gz"}), "a\nb\n");
  }
  // A directory, a glob and a name are alike.
  const std::string folder = FreshDirectory("formats") + "/";
  Write("1.json", dresses[1]);
  Write("2", dresses[0]);
  Write("3.txt", "some prose");
  const std::string want = "a\nb\na\nb\nsome prose\n";
  EXPECT_EQ(Read({folder}), want);
  EXPECT_EQ(Read({folder + "*"}), want);
  EXPECT_EQ(Read({folder + "1.json", folder + "2", folder + "3.txt"}), want);
}

// Chunks end anywhere between elements, and change nothing.
TEST_F(TextFiles, ListsAreReadInChunks) {
  std::string list, lines, want;
  for (int i = 0; i < 300; ++i) {
    const std::string text(static_cast<size_t>(i % 37 + 1), static_cast<char>('a' + i % 26));
    const std::string object = "{\"k\": [1, {\"[\": \"\\\\\"}], \"text\": \"" + text + "\"}";
    list += (i == 0 ? "[" : i % 3 == 0 ? ",\n" : " ,  ") + object;
    lines += object + "\n";
    want += text + "\n";
  }
  list += "\n]\n";
  for (const int64_t chunk : {1, 40, 1000, 1 << 20}) {
    EXPECT_EQ(Read({Write("a.json", list)}, chunk), want) << chunk;
    EXPECT_EQ(Read({Write("b", lines)}, chunk), want) << chunk;
  }
}

TEST_F(TextFiles, WhatIsNoTextIsNamedWithACure) {
  const auto error = [&](const std::string& name, const std::string& contents) {
    return Read({Write(name, contents)});
  };
  EXPECT_EQ(error("a.json", "[{\"text\": \"a\"}, 5]"),
            "tokenize: a.json, line 1, element 2: is no JSON object");
  EXPECT_EQ(error("a.json", "[\n{\"text\": \"a\"},\n{\"txt\": 5}]"),
            "tokenize: a.json, line 3, element 2: has no field `text`: name it with --column");
  EXPECT_EQ(error("a.json", "[{\"text\": \"a\"} {\"text\": \"b\"}]"),
            "tokenize: a.json, behind byte 14: has no comma behind an element of its list");
  EXPECT_EQ(error("a.json", "[{\"text\": \"a\"},"),
            "tokenize: a.json, behind byte 14: is cut off: its list does not end");
  EXPECT_EQ(error("a.json", "[{\"text\": \"a\"}, {\"text\": "),
            "tokenize: a.json, behind byte 14: is cut off: an element does not end");
  EXPECT_EQ(error("a.json", "[{\"text\": \"a\"}] x"),
            "tokenize: a.json, behind byte 14: has text behind the end of its list");
  EXPECT_EQ(error("a.json", "prose"), "tokenize: a.json, line 1: column 1: want a value, got 'p'");
  const std::string pandas = "python3 -c 'import sys, pandas; pandas.read_";
  for (const auto& [name, reader] : {std::pair("a.csv", "csv"), {"A.TSV", "table"}}) {
    const std::string said = error(name, "text,url\n\"a\",u\n");
    EXPECT_EQ(said.find(std::string("data: ") + name +
                        ": is a table, not text: convert it: " + pandas + reader),
              0u)
        << said;
  }
  EXPECT_EQ(error("a.parquet", "prose"),
            "data: a.parquet: is called Parquet, and is none: rename it, if it is text");
  EXPECT_NE(error("a", "PAR1" + std::string(9, '\x15') + "PAR1").find("is Parquet, not text"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp
