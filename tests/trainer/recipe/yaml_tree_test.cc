#include "trainer/recipe/yaml_tree.h"

#include <gtest/gtest.h>

#include <utility>

namespace fsdp {
namespace {

using recipe::ParseYaml;
using recipe::Place;
using recipe::PlainType;
using recipe::RecipeMistake;
using recipe::ResolvePlain;
using recipe::YamlNode;

std::string Show(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kScalar:
      return (node.plain ? "" : "'") + node.text;
    case YamlNode::Kind::kList: {
      std::string text = "[";
      for (const auto& item : node.items) text += Show(*item) + " ";
      return text + "]";
    }
    case YamlNode::Kind::kMap: {
      std::string text = "{";
      for (const auto& entry : node.entries) text += entry.key + ":" + Show(*entry.value) + " ";
      return text + "}";
    }
  }
  return "";
}

// The tree, or "line:column key: message" of each mistake.
std::string Parse(const std::string& text) {
  std::vector<RecipeMistake> mistakes;
  const auto tree = ParseYaml(text, 0, true, mistakes);
  if (mistakes.empty()) return Show(*tree);
  std::string lines;
  for (const RecipeMistake& mistake : mistakes) {
    lines += std::to_string(mistake.place.line) + ":" + std::to_string(mistake.place.column) + " " +
             mistake.key + ": " + mistake.message + "\n";
  }
  return lines;
}

TEST(YamlTree, KeepsKindsAndQuotes) {
  EXPECT_EQ(Parse(""), "null");
  EXPECT_EQ(Parse("# only a comment\n"), "null");
  EXPECT_EQ(Parse("a: 1\nb: '1'\nc: \"x\\ty\"\nd:\ne: ~\nf: [1, null, {g: h}]\n"),
            "{a:1 b:'1 c:'x\ty d:null e:null f:[1 null {g:h } ] }");
  EXPECT_EQ(Parse("a: |\n  two\n  lines\n"), "{a:'two\nlines\n }");
  EXPECT_EQ(Parse("a: 1\n...\n"), "{a:1 }");
  EXPECT_EQ(Parse("a: |+\n  x\n\n"), "{a:'x\n\n }");
  EXPECT_EQ(Parse("--- {a: &x [1, 2], b: *x}\n"), "{a:[1 2 ] b:[1 2 ] }");
}

TEST(YamlTree, KnowsPlaces) {
  std::vector<RecipeMistake> mistakes;
  const auto tree = ParseYaml("a: 1\nbc:\n  d: [x,\n      y]\n", 7, true, mistakes);
  const YamlNode::Entry* bc = tree->Find("bc");
  ASSERT_NE(bc, nullptr);
  EXPECT_EQ(bc->place, (Place{7, 2, 1}));
  const YamlNode::Entry* d = bc->value->Find("d");
  EXPECT_EQ(d->place, (Place{7, 3, 3}));
  EXPECT_EQ(d->value->items[0]->place, (Place{7, 3, 7}));
  EXPECT_EQ(d->value->items[1]->place, (Place{7, 4, 7}));
  EXPECT_EQ(tree->Find("nothing"), nullptr);
  EXPECT_EQ(ParseYaml("{a: b}", 3, false, mistakes)->entries[0].place, (Place{3, 0, 0}));
}

TEST(YamlTree, DuplicateKeysNameBothLines) {
  EXPECT_EQ(Parse("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\na: 5\n"),
            "5:3 b.c: duplicate key, first on line 3\n6:1 a: duplicate key, first on line 1\n");
  EXPECT_EQ(Parse("l: [{x: 1}, {x: 1, x: 2}]"), "1:20 l[1].x: duplicate key, first on line 1\n");
}

TEST(YamlTree, RefusesWhatARecipeHasNoUseFor) {
  EXPECT_EQ(Parse("a: 1\n---\nb: 2\n"), "2:1 : a second document: a recipe is one\n");
  EXPECT_EQ(Parse("a: &x {b: 1}\nc: {<<: *x}\n"),
            "2:5 : merge keys (<<) are not supported: use a second --config file\n");
  EXPECT_EQ(Parse("a: !!int 5\n"), "1:4 : tags are not supported, got tag:yaml.org,2002:int\n");
  EXPECT_EQ(Parse("{[a]: b}\n"), "1:2 : a key must be text; or a bracket is not closed\n");
  EXPECT_EQ(Parse("{~: b}\n"), "1:2 : a key must be text\n");
  EXPECT_EQ(Parse("a: &x [*x]\n"), "1:8 : an alias inside its own anchor\n");
  EXPECT_EQ(Parse("a: &x b\n*x : c\n"), "2:1 : an alias cannot be a key\n");
}

TEST(YamlTree, TomlIsCalledToml) {
  const std::string toml =
      "TOML, and a recipe is YAML: `steps = 10` below `[train]` is `train: {steps: 10}`\n";
  EXPECT_EQ(Parse("# torchtitan\n\n[job]\ndump_folder = \"./outputs\"\n"), "3:1 : " + toml);
  EXPECT_EQ(Parse("  title = \"x\"\n[job]\n"), "1:3 : " + toml);
  EXPECT_EQ(Parse("[[override.a-b]]\n"), "1:1 : " + toml);
  EXPECT_EQ(Parse("a: b\n[job]\n").find("TOML"), std::string::npos);
  EXPECT_EQ(Parse("[a, b]\n"), "[a b ]");
  EXPECT_EQ(Parse("a: x = 1\n"), "{a:x = 1 }");
}

TEST(YamlTree, SyntaxErrorsHaveAPlace) {
  EXPECT_EQ(Parse("a: 1\nb: [1, 2\n"), "2:4 : `[` is not closed\n");
  EXPECT_EQ(Parse("a:\n  b: {c: [1, 2], d: 3\n\n"), "2:6 : `{` is not closed\n");
  const std::string missing = " is not closed, or a comma is missing, before line ";
  EXPECT_EQ(Parse("a: {b: [1, 2}\nc: 3\n"), "1:8 : `[`" + missing + "1, column 13\n");
  EXPECT_EQ(Parse("a: {b: 1\nc: 2\n"), "1:4 : `{`" + missing + "2, column 2\n");
  EXPECT_EQ(Parse("a: [{b: c: d}]\n"), "1:5 : `{`" + missing + "1, column 10\n");
  EXPECT_EQ(Parse("a: 1\n  b: 2\n").substr(0, 16), "2:4 : not YAML: ");
  const std::string tab = ": a tab: YAML is indented with spaces alone\n";
  EXPECT_EQ(Parse("a:\n\t b: 2\n"), "2:1 " + tab);
  EXPECT_EQ(Parse("a:\n  \tb: 2\n"), "2:3 " + tab);
  EXPECT_EQ(Parse("a:\n  b: 1\n\tc: 2\n"), "3:1 " + tab);
  EXPECT_EQ(Parse("a: *nobody\n").substr(0, 16), "1:4 : not YAML: ");
  EXPECT_EQ(Parse("a: \"open\nb: 1\n"), "3:1 : not YAML: a quote above is not closed\n");
  EXPECT_EQ(Parse("a: 'open"), "2:1 : not YAML: a quote above is not closed\n");
  EXPECT_EQ(Parse("{\"a\": \"x\\ud83d\\ude00\"}"),
            "1:15 : \\ud83d\\ude00 is a character in two halves, as JSON escapes it: in YAML it is "
            "\\U0001F600, or the character itself\n");
  EXPECT_EQ(Parse("a: \"\\ud83d\"\n"), "1:11 : \\ud83d is half of a character\n");
  EXPECT_EQ(Parse("a: \"\\UFFFFFFFF\"\n").substr(0, 32), "1:15 : not YAML: invalid unicode");
  EXPECT_EQ(Parse("a: [1"), "1:4 : `[` is not closed\n");
  EXPECT_EQ(Parse("{"), "1:1 : a key must be text; or a bracket is not closed\n");
  EXPECT_NE(Parse(std::string(5000, '[') + std::string(5000, ']')).find("nested too deeply"),
            std::string::npos);
}

TEST(YamlTree, TextIsUtf8) {
  EXPECT_EQ(Parse("a: \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\n"),
            "{a:\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 }");
  EXPECT_EQ(Parse("\xff"), "1:1 : not UTF-8 text\n");
  EXPECT_EQ(Parse("a: 1\nb: x\xe4y\n"), "2:5 : not UTF-8 text\n");
  for (const char* bad : {"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xe2\x82", "\x80", "\xf5\x80\x80\x80"}) {
    EXPECT_EQ(Parse("ab" + std::string(bad)), "1:3 : not UTF-8 text\n") << bad;
  }
}

TEST(ResolvePlain, FollowsTheCoreSchema) {
  const auto expect = [](PlainType type, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_EQ(ResolvePlain(word), type) << word;
  };
  expect(PlainType::kNull, {"", "~", "null", "Null", "NULL"});
  expect(PlainType::kBool, {"true", "True", "TRUE", "false", "False", "FALSE"});
  expect(PlainType::kInteger, {"0", "-1", "+7", "007", "0o17", "0xfF", "123456789012345678901"});
  expect(PlainType::kNumber, {"1.", ".5", "-.5", "1e3", "3.0e-4", "3e-4", "+1.5E+10", ".inf",
                              "-.INF", "+.Inf", ".nan", ".NaN"});
  expect(PlainType::kText, {"yes", "no",  "on",    "off",   "y",   "nULL", "tRUE", "1_000", "1e",
                            "1e+", ".",   "-",     "+",     "e5",  "0x",   "0o8",  "0xg",   "-0x1",
                            "inf", "nan", "-.nan", "1.5.2", "1 2", "12ab", "1e3x", "..5",   "--1"});
}

}  // namespace
}  // namespace fsdp
