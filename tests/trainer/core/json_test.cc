#include "trainer/core/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

using std::string_literals::operator""s;

TEST(JsonNumber, IsTheShortestThatReadsBack) {
  EXPECT_EQ(JsonNumber(0.1), "0.1");
  EXPECT_EQ(JsonNumber(2), "2.0");
  EXPECT_EQ(JsonNumber(-0.0), "-0.0");
  EXPECT_EQ(JsonNumber(0.03125), "0.03125");
  EXPECT_EQ(JsonNumber(3e-4), "3e-04");
  EXPECT_EQ(JsonNumber(1e300), "1e+300");
  EXPECT_EQ(JsonNumber(float{0.1f}), "0.10000000149011612");
  EXPECT_EQ(JsonNumber(5e-324), "5e-324");
  EXPECT_EQ(JsonNumber(NAN), "null");
  EXPECT_EQ(JsonNumber(INFINITY), "null");
  EXPECT_EQ(JsonNumber(-INFINITY), "null");
}

// Every exponent comes up in random bits.
TEST(JsonNumber, ReadsBackToTheSameBits) {
  const RandomStream random(1, "json");
  for (uint64_t i = 0; i < 20000; ++i) {
    const uint64_t bits = uint64_t{random.Bits(2 * i)} << 32 | random.Bits(2 * i + 1);
    const double value = std::bit_cast<double>(bits);
    const std::string text = JsonNumber(value);
    if (!std::isfinite(value)) {
      EXPECT_EQ(text, "null");
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint64_t>(std::strtod(text.c_str(), nullptr)), bits) << text;
    EXPECT_EQ(std::bit_cast<uint64_t>(nlohmann::json::parse(text).get<double>()), bits) << text;
  }
}

TEST(JsonString, IsAlwaysJsonAndReadsBackWhereItIsText) {
  for (const std::string& text :
       {"plain"s, "a\"b\\c/d"s, "\x00\x01\x1f\n\t\r\x7f"s, "é═\xf0\x9f\x98\x80"s}) {
    EXPECT_EQ(nlohmann::json::parse(JsonString(text)).get<std::string>(), text);
  }
  EXPECT_EQ(JsonString("a\n\"\x01"), "\"a\\n\\\"\\u0001\"");
  EXPECT_EQ(nlohmann::json::parse(JsonString("a\xff\xc3")).get<std::string>(), "a\uFFFD\uFFFD");
  // One for each maximal subpart, as Python's decode("utf-8", "replace") has it.
  EXPECT_EQ(nlohmann::json::parse(JsonString("\xf0\x9f\x98 \xe2\x82")).get<std::string>(),
            "\uFFFD \uFFFD");
}

TEST(JsonObject, KeepsOrderAndTypes) {
  EXPECT_EQ(
      JsonObject()
          .Add("text", "a")
          .Add("string", std::string("b"))
          .Add("int", int64_t{-3})
          .Add("big", std::numeric_limits<uint64_t>::max())
          .Add("number", 2.5)
          .Add("yes", true)
          .Add("none", std::optional<double>())
          .Add("some", std::optional<double>(1))
          .Add("object", JsonObject().Add("x", 1))
          .AddRaw("array", JsonArray({"1", "\"b\""}))
          .Text(),
      R"({"text": "a", "string": "b", "int": -3, "big": 18446744073709551615, "number": 2.5, )"
      R"("yes": true, "none": null, "some": 1.0, "object": {"x": 1}, "array": [1, "b"]})");
  EXPECT_EQ(JsonObject().Text(), "{}");
  EXPECT_EQ(JsonArray({}), "[]");
}

}  // namespace
}  // namespace fsdp
