#include "trainer/ops/element_rules.h"

#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/trainer/ops/optimizer_blocks.h"

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

// Later steps from a checkpoint are rounded by these keys: they must never change.
TEST(ElementRules, TensorsHaveKeysForEver) {
  EXPECT_EQ(TensorKey("transformer.h.0.attn.c_attn.weight"), 0x47d226963e0f77c1u);
  EXPECT_NE(TensorKey("a"), TensorKey("b"));
}

class RuleTableTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(RuleTableTest, kF32);

TEST_P(RuleTableTest, HoldsTheRules) {
  const std::vector<ElementRule> rules = {{2, 5, 0.5}, {5, 6, 0, 3, 77, 5}};
  const View table = Output(RuleTableShape(2), DType::kUInt8);
  Run([&](Stream& stream) { WriteRules(stream, rules, 10, table); });
  EXPECT_EQ(Get(table), BytesOf(rules.data(), rules.size()));
}

// More than travel at once.
TEST_P(RuleTableTest, HoldsManyRules) {
  std::vector<ElementRule> rules;
  for (int64_t i = 0; i < 150; ++i) rules.push_back({i, i + 1, 0.5, 2, uint64_t(i) << 40, 3 * i});
  const View table = Output(RuleTableShape(rules.size()), DType::kUInt8);
  Run([&](Stream& stream) { WriteRules(stream, rules, 150, table); });
  EXPECT_EQ(Get(table), BytesOf(rules.data(), rules.size()));
}

TEST_P(RuleTableTest, RefusesDisorder) {
  const auto write = [&](const std::vector<ElementRule>& rules) {
    const View table = Output(RuleTableShape(rules.size()), DType::kUInt8);
    return [=](Stream& stream) { WriteRules(stream, rules, 10, table); };
  };
  EXPECT_NO_THROW(Run(write({})));
  EXPECT_NO_THROW(Run(write({{0, 4}, {4, 10}})));
  ExpectRefused(write({{-1, 4}}), "[write_rules] rule for [-1, 4)");
  ExpectRefused(write({{4, 3}}), "rule for [4, 3)");
  ExpectRefused(write({{0, 4}, {3, 5}}), "rule for [3, 5) is not in order inside [4, 10)");
  ExpectRefused(write({{0, 11}}), "rule for [0, 11)");
  ExpectRefused(write({{0, 4, -1}}), "weight_decay");
  ExpectRefused(write({{0, 4, 0, -1}}), "lr_scale");
  ExpectRefused(write({{0, 4, 0, 1, 0, -1}}), "element");
  const View small = Output(RuleTableShape(1), DType::kUInt8);
  ExpectRefused([=](Stream& s) { WriteRules(s, {{0, 1}, {1, 2}}, 10, small); }, "table is uint8");
}

}  // namespace
}  // namespace fsdp
