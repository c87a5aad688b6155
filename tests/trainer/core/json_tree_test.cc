#include "trainer/core/json_tree.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/core/json_reader.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

using nlohmann::ordered_json;
using std::string_literals::operator""s;

// Our files were written so.
std::string Library(const std::string& text, int indent) {
  return ordered_json::parse(text).dump(indent);
}

TEST(JsonTree, IsWrittenAsTheLibraryWritesIt) {
  for (const std::string& text :
       {"null"s, "[]"s, "{}"s, "[[], {}, [[]]]"s, "[1, -2, 18446744073709551615, 1e3, -0.0]"s,
        "[9223372036854775807, 9223372036854775808, -9223372036854775808]"s,
        R"({"b": {"z": [1.5, true], "a": null}, "a": "x\"\\\n\u0001\u007f/é😀", "é\n": false})"s,
        R"({"a": 1, "b": 2, "a": {"c": 3}})"s}) {
    const auto tree = JsonTree::Parse(text);
    ASSERT_TRUE(tree) << text;
    for (const int indent : {-1, 0, 1, 2}) EXPECT_EQ(tree->Dump(indent), Library(text, indent));
  }
}

// Every exponent comes up in random bits.
TEST(JsonTree, WritesNumbersThatReadBackToTheSameBits) {
  const RandomStream random(1, "json");
  for (uint64_t i = 0; i < 20000; ++i) {
    const uint64_t bits = uint64_t{random.Bits(2 * i)} << 32 | random.Bits(2 * i + 1);
    const double value = std::bit_cast<double>(bits);
    const std::string text = JsonTree(value).Dump();
    EXPECT_EQ(text, ordered_json(value).dump());
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(std::bit_cast<uint64_t>(JsonTree::Parse(text)->Number()), bits) << text;
  }
}

TEST(JsonTree, IsMadeOfValues) {
  const std::map<std::string, int> members = {{"a", 1}, {"b", 2}};
  const JsonTree tree = JsonTree::Object({{"text", "a"},
                                          {"map", members},
                                          {"list", std::vector<std::string>{"x", "y"}},
                                          {"some", std::optional<int64_t>(3)},
                                          {"none", std::optional<int64_t>()},
                                          {"mixed", JsonTree::List({1, true, nullptr, 2.0f})}});
  EXPECT_EQ(tree.Dump(), R"({"text":"a","map":{"a":1,"b":2},"list":["x","y"],"some":3,)"
                         R"("none":null,"mixed":[1,true,null,2.0]})");
}

TEST(JsonTree, KeepsThePlacesOfItsMembers) {
  JsonTree tree;
  EXPECT_TRUE(tree.IsNull());
  EXPECT_FALSE(tree.Contains("b"));
  tree["b"] = 1;
  tree["a"] = JsonTree::List();
  tree["c"]["inner"] = nullptr;
  tree["b"] = "new";
  tree.Update(JsonTree::Object({{"d", 4}, {"a", 3}}));
  EXPECT_EQ(tree.Dump(), R"({"b":"new","a":3,"c":{"inner":null},"d":4})");
  tree.Erase("a");
  EXPECT_EQ(tree.Find("a"), nullptr);
  EXPECT_EQ(tree.size(), 3u);
}

TEST(JsonTree, ComparesNumbersByValueAndMembersInOrder) {
  EXPECT_EQ(JsonTree(1), JsonTree(1.0));
  EXPECT_NE(JsonTree(1), JsonTree(true));
  EXPECT_NE(JsonTree(-1), JsonTree(std::numeric_limits<uint64_t>::max()));
  EXPECT_NE(JsonTree(NAN), JsonTree(NAN));
  EXPECT_NE(JsonTree(), JsonTree::Object());
  const auto parse = [](const char* text) { return *JsonTree::Parse(text); };
  EXPECT_EQ(parse(R"({"a": [1, {"b": "c"}]})"), parse(R"({"a": [1, {"b": "c"}]})"));
  EXPECT_NE(parse(R"({"a": [1, {"b": "c"}]})"), parse(R"({"a": [1, {"b": "d"}]})"));
  EXPECT_NE(parse(R"({"a": 1, "b": 2})"), parse(R"({"b": 2, "a": 1})"));
}

TEST(JsonTree, RefusesOrReplacesWhatIsNoUtf8) {
  const JsonTree tree = JsonTree::Object({{"a\xff", "\xe2\x82 b"}});
  EXPECT_THROW(tree.Dump(), NotUtf8);
  EXPECT_EQ(tree.Dump(-1, JsonTree::IllFormed::kReplaced), "{\"a\uFFFD\":\"\uFFFD b\"}");
  for (const char* text : {"", "{", "[1,]", "1 2", "'a'", "nan", "\"\xff\""}) {
    EXPECT_FALSE(JsonTree::Parse(text)) << text;
  }
}

TEST(NestsDeeper, CountsBracketsOutsideOfStrings) {
  const std::string deep = std::string(101, '[') + std::string(101, ']');
  EXPECT_TRUE(NestsDeeper(deep, 100));
  EXPECT_FALSE(NestsDeeper(deep, 101));
  EXPECT_FALSE(JsonTree::Parse(deep));
  EXPECT_TRUE(JsonTree::Parse(deep, 101));
  EXPECT_FALSE(NestsDeeper("[\"\\\"" + deep + "\"]", 100));
  std::string flat = "[";
  for (int i = 0; i < 200; ++i) flat += "{},";
  EXPECT_FALSE(NestsDeeper(flat + "{}]", 100));
}

}  // namespace
}  // namespace fsdp
