#include "trainer/core/json_reader.h"

#include <gtest/gtest.h>

#include "tests/testing/error_of.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr JsonErrors kPlain{.raise = [](const std::string& message) { throw DataError(message); }};

JsonValue Parse(const std::string& text) { return ParseJson(text, "dir/a.json", kPlain); }

template <typename Call>
std::string ErrorOf(Call call) {
  return testing::ErrorOf<DataError>(call);
}

TEST(JsonReader, ConversionsAreExact) {
  const JsonValue json = Parse(R"({"one": 1, "real": 1.5, "whole": 1.0, "yes": true, "text": "é",
      "low": -9223372036854775808, "high": 9223372036854775807, "more": 9223372036854775808,
      "most": 18446744073709551615, "over": 18446744073709551616, "null": null})");
  EXPECT_EQ(json.At("one").Integer(), 1);
  EXPECT_EQ(json.At("one").Integer(1, 1), 1);
  EXPECT_EQ(json.At("low").Integer(), INT64_MIN);
  EXPECT_EQ(json.At("high").Integer(), INT64_MAX);
  EXPECT_EQ(json.At("most").Unsigned(), UINT64_MAX);
  EXPECT_EQ(json.At("one").Number(), 1);
  EXPECT_EQ(json.At("real").Number(), 1.5);
  EXPECT_TRUE(json.At("yes").Boolean());
  EXPECT_EQ(json.At("text").Text(), "é");
  for (const char* key : {"real", "whole", "yes", "text", "more", "most", "over", "null"}) {
    EXPECT_EQ(ErrorOf([&] { json.At(key).Integer(); }),
              std::string("dir/a.json: ") + key + ": want an integer");
  }
  const auto error = [&](const auto& call) { return ErrorOf(call).substr(12); };
  EXPECT_EQ(error([&] { json.At("one").Integer(2, 3); }), "one: want an integer from 2 to 3");
  EXPECT_EQ(error([&] { json.At("one").Integer(-1, 0); }), "one: want an integer from -1 to 0");
  EXPECT_EQ(error([&] { json.At("more").Integer(0, INT64_MAX); }),
            "more: want an integer from 0 to 9223372036854775807");
  EXPECT_EQ(error([&] { json.At("low").Unsigned(); }), "low: want an unsigned integer of 64 bits");
  EXPECT_EQ(error([&] { json.At("text").Number(); }), "text: is not a number");
  EXPECT_EQ(error([&] { json.At("one").Boolean(); }), "one: is neither true nor false");
  EXPECT_EQ(error([&] { json.At("null").Text(); }), "null: is not a string");
  EXPECT_EQ(error([&] { json.At("one").Elements(); }), "one: is not a list");
  EXPECT_EQ(error([&] { json.At("one").Members(); }), "one: is not an object");
  EXPECT_TRUE(json.At("one").Is("1.0"));
  EXPECT_FALSE(json.At("yes").Is("1"));
  EXPECT_TRUE(json.At("one").IsInteger(1, 2));
  EXPECT_FALSE(json.At("one").IsInteger(2, 3));
  EXPECT_FALSE(json.At("most").IsInteger(INT64_MIN, INT64_MAX));
}

TEST(JsonReader, AValueKnowsItsPlace) {
  const JsonValue json = Parse(R"({"b": [{"c": 3}, {"x\ny": {"z": 1}}], "null": null})");
  const JsonValue second = json.At("b").Elements()[1];
  EXPECT_EQ(second.place(), "b[1]");
  EXPECT_EQ(second.Members()[0].first, "x\ny");
  EXPECT_EQ(second.Members()[0].second.At("z").place(), "b[1].'x?y'.z");
  EXPECT_EQ(ErrorOf([&] { json.Refuse("is wrong"); }), "dir/a.json: is wrong");
  EXPECT_EQ(ErrorOf([&] { json.At("x"); }), "dir/a.json: has no x");
  EXPECT_EQ(ErrorOf([&] { json.At("b").At("x"); }), "dir/a.json: b: has no x");
  EXPECT_EQ(ErrorOf([&] { second.Refuse("x", "is wrong"); }), "dir/a.json: b[1].x: is wrong");
  EXPECT_EQ(ErrorOf([&] { second.Named("it").At("x"); }), "dir/a.json: it: has no x");
  EXPECT_EQ(second.Named("it").Named("that").place(), "that");
  // Null is there, and counts as absent where that is the same.
  EXPECT_TRUE(json.Has("null"));
  EXPECT_FALSE(json.Find("null"));
  EXPECT_FALSE(json.Find("x"));
  EXPECT_FALSE(json.At("b").Find("x"));  // A list has no keys.
  EXPECT_EQ(json.Find("b")->Elements()[0].At("c").Integer(), 3);
}

TEST(JsonReader, ItsWordsAreTheCallers) {
  struct Own {
    std::string what;
  };
  constexpr JsonErrors kOwn{.raise = [](const std::string& message) { throw Own{message}; },
                            .separator = " ",
                            .shows_value = true,
                            .key_quote = "`",
                            .not_json = "is no JSON",
                            .integer = "is no id"};
  const auto error = [&](const std::string& text, const auto& call) -> std::string {
    try {
      call(ParseJson(text, "", kOwn, "the file"));
    } catch (const Own& own) {
      return own.what;
    }
    return "";
  };
  const auto nothing = [](const JsonValue&) {};
  EXPECT_EQ(error("{}", nothing), "");
  EXPECT_EQ(error("{", nothing), "the file is no JSON");
  EXPECT_EQ(error("{}", [](const JsonValue& v) { v.At("a"); }), "the file has no `a`");
  EXPECT_EQ(error(R"({"a": {}})", [](const JsonValue& v) { v.At("a").At("b"); }), "a has no `b`");
  EXPECT_EQ(error(R"({"a": -1.5})", [](const JsonValue& v) { v.At("a").Integer(0, 7); }),
            "a -1.5 is no id from 0 to 7");
  EXPECT_EQ(error(R"({"a": [1]})", [](const JsonValue& v) { v.At("a").Text(); }),
            "a a list is not a string");
}

TEST(JsonReader, WhatIsNoJsonIsRefused) {
  for (const std::string text : {"", "{", "{} {}", "[1,]", "{\"a\": 1} x", "'a'", "nan", "01",
                                 "[1] // c", "\"\xff\"", "\"\xed\xa0\x80\"", "\"\n\"", "1e999"}) {
    EXPECT_EQ(ErrorOf([&] { Parse(text); }).rfind("dir/a.json:1:", 0), 0u) << text;
  }
  // The last of equal keys.
  const JsonValue twice = Parse(R"({"a": 1, "b": 2, "a": 3})");
  EXPECT_EQ(twice.At("a").Integer(), 3);
  EXPECT_EQ(twice.Members().size(), 2u);
}

TEST(JsonReader, NestingIsBounded) {
  const auto nested = [](int levels) {
    return std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']');
  };
  EXPECT_EQ(Parse(nested(100)).Dump(), nested(100));
  const std::string want = "dir/a.json: is nested more than 100 deep";
  EXPECT_EQ(ErrorOf([&] { Parse(nested(101)); }), want);
  EXPECT_EQ(ErrorOf([&] { Parse(nested(1'000'000)); }), want);
  EXPECT_EQ(ErrorOf([&] { Parse("{\"a\": " + nested(100) + "}"); }), want);
  // Brackets in strings, and one after another, are no levels.
  EXPECT_EQ(Parse("[\"" + std::string(200, '[') + "\\\"{\"]").Elements().size(), 1u);
  std::string flat = "[[]";
  for (int i = 0; i < 200; ++i) flat += ", {}";
  EXPECT_EQ(Parse(flat + "]").Elements().size(), 201u);
}

TEST(JsonReader, MessagesShowLittle) {
  const JsonValue json = Parse(R"(["é", {"a": 1}, [1], ")" + std::string(100, 'x') + "\"]");
  const std::vector<JsonValue> values = json.Elements();
  EXPECT_EQ(values[0].Show(), "\"\\u00e9\"");
  EXPECT_EQ(values[0].Dump(), "\"é\"");
  EXPECT_EQ(values[1].Show(), "an object");
  EXPECT_EQ(values[2].Show(), "a list");
  EXPECT_EQ(values[3].Show(), "\"" + std::string(59, 'x') + "...");
  EXPECT_EQ(Quote("a\n\xc3"), "'a?\?'");
  EXPECT_EQ(Quote(std::string(101, 'b')), "'" + std::string(100, 'b') + "...'");
}

// Values may outlive who parsed them.
TEST(JsonReader, AValueKeepsItsDocument) {
  const JsonValue inner = Parse(R"({"a": {"b": "text"}})").At("a").At("b");
  EXPECT_EQ(inner.Text(), "text");
}

}  // namespace
}  // namespace fsdp
