#include "tests/testing/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp::testing {
namespace {

constexpr char kText[] =
    R"({"b": [1, -2, 18446744073709551615, 2.5, 1e300, 3.0, "a\"\n\u00e9", true, false, null],
        "a": {"c": {}, "d": []}, "b ": 0.1})";

TEST(JsonInTests, IsReadAndWrittenAsByTheLibrary) {
  const auto want = nlohmann::json::parse(kText);
  const Json got = Json::parse(kText);
  for (const int indent : {-1, 2}) EXPECT_EQ(got.dump(indent), want.dump(indent));
  EXPECT_EQ(got, Json::parse(want.dump()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : got.items()) {
    keys.push_back(key);
    EXPECT_EQ(value.dump(), want[key].dump());
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"a", "b", "b "}));
  EXPECT_EQ(got["b"][2].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(got["b"][1].get<int64_t>(), -2);
  EXPECT_EQ(got["b"][4].get<double>(), 1e300);
  EXPECT_THROW(Json::parse("{\"a\": 1"), std::invalid_argument);
}

TEST(JsonInTests, BracesMakeWhatTheyMakeInTheLibrary) {
  const std::vector<int> list = {1, 2};
  EXPECT_EQ((Json{{"a", list}, {"b", {{"c", nullptr}}}}).dump(),
            (nlohmann::json{{"a", list}, {"b", {{"c", nullptr}}}}).dump());
  EXPECT_EQ(Json({"a"}).dump(), nlohmann::json({"a"}).dump());
  EXPECT_EQ((Json{"a", "b"}).dump(), (nlohmann::json{"a", "b"}).dump());
  EXPECT_EQ((Json{true, 0, 0.5}).dump(), (nlohmann::json{true, 0, 0.5}).dump());
}

TEST(JsonInTests, ValuesDifferByKindAndNumber) {
  EXPECT_EQ(Json(1), Json(1.0));
  EXPECT_EQ(Json(1u), 1);
  EXPECT_GT(Json(UINT64_MAX), Json(INT64_MAX));
  EXPECT_LT(Json(-1), Json(UINT64_MAX));
  const std::vector<Json> all = {nullptr,
                                 false,
                                 true,
                                 0,
                                 1,
                                 0.5,
                                 "",
                                 "1",
                                 Json::array(),
                                 Json::object(),
                                 Json{1},
                                 Json{{"a", 1}},
                                 Json{{"a", 2}},
                                 Json{{"b", 1}}};
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) EXPECT_EQ(all[i] == all[j], i == j) << i << " " << j;
  }
}

TEST(JsonInTests, WhatIsNotThereThrows) {
  const Json json = {{"a", 1}, {"b", "x"}};
  EXPECT_TRUE(json["c"].is_null());
  EXPECT_THROW((void)json.at("c"), std::invalid_argument);
  EXPECT_THROW((void)json["b"].get<double>(), std::invalid_argument);
  EXPECT_THROW((void)json["a"].get<std::string>(), std::invalid_argument);
  EXPECT_THROW((void)json.at(0), std::invalid_argument);
  EXPECT_EQ(json.value("a", 2), 1);
  EXPECT_EQ(json.value("c", "y"), "y");
}

}  // namespace
}  // namespace fsdp::testing
