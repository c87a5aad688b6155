#include "trainer/ops/element_rules.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdp {
namespace {

std::string Runs(const std::vector<ElementRule>& rules, int64_t begin, int64_t end) {
  std::string out;
  ForEachRun(rules, begin, end, [&](int64_t a, int64_t b, int rule) {
    out += (rule < 0 ? "-" : std::to_string(rule)) + "@";
    out += std::to_string(a) + ":" + std::to_string(b) + " ";
  });
  return out;
}

TEST(ElementRules, RunsCoverEachElementOnce) {
  const std::vector<ElementRule> rules = {{2, 5}, {5, 6}, {7, 7}, {8, 12}};
  EXPECT_EQ(Runs(rules, 0, 15), "-@0:2 0@2:5 1@5:6 -@6:8 3@8:12 -@12:15 ");
  EXPECT_EQ(Runs(rules, 3, 9), "0@3:5 1@5:6 -@6:8 3@8:9 ");
  EXPECT_EQ(Runs(rules, 6, 8), "-@6:8 ");
  EXPECT_EQ(Runs(rules, 9, 11), "3@9:11 ");
  EXPECT_EQ(Runs(rules, 12, 12), "");
  EXPECT_EQ(Runs({}, 3, 9), "-@3:9 ");
}

TEST(ElementRules, RefusesDisorder) {
  const Arguments args("op");
  const auto check = [&](const std::vector<ElementRule>& rules) { CheckRules(args, rules, 10); };
  EXPECT_NO_THROW(check({}));
  EXPECT_NO_THROW(check({{0, 4}, {4, 10}}));
  EXPECT_THROW(check({{-1, 4}}), std::invalid_argument);
  EXPECT_THROW(check({{4, 3}}), std::invalid_argument);
  EXPECT_THROW(check({{0, 4}, {3, 5}}), std::invalid_argument);
  EXPECT_THROW(check({{0, 11}}), std::invalid_argument);
  EXPECT_THROW(check({{0, 4, -1}}), std::invalid_argument);
  EXPECT_THROW(check({{0, 4, 0, -1}}), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
