#include "trainer/ops/running_statistics.h"

#include <limits>
#include <vector>

#include "tests/testing/harness.h"

namespace fsdp {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class TakeUnlessNaNTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(TakeUnlessNaNTest, kF32);

TEST_P(TakeUnlessNaNTest, DividesOrLeavesAlone) {
  for (const int64_t n : {1, 3, 257, 300000}) {
    std::vector<double> values, before, want;
    for (int64_t i = 0; i < n; ++i) {
      values.push_back(static_cast<double>(i % 1000) - 3);
      before.push_back(-1);
      want.push_back(static_cast<float>(values.back()) / 3.0f);
    }
    const View from = Input({n}, values), to = Input({n}, before);
    const View nan = Input({1}, {kNaN}), number = Input({1}, {0});
    Run([&](Stream& s) { TakeUnlessNaN(s, nan, 3, from, to); });
    EXPECT_EQ(Get(to), before);
    Run([&](Stream& s) { TakeUnlessNaN(s, number, 3, from, to); });
    EXPECT_EQ(Get(to), want);
    Clear();
  }
}

TEST_P(TakeUnlessNaNTest, CountsAreTakenWhole) {
  const View count = Input({}, {7}, DType::kInt64), to = Input({}, {2}, DType::kInt64);
  const View nan = Input({1}, {kNaN}), number = Input({1}, {1});
  Run([&](Stream& s) { CountBatch(s, count); });
  Run([&](Stream& s) { CountBatch(s, count); });
  EXPECT_EQ(Get(count), std::vector<double>{9});
  Run([&](Stream& s) { TakeUnlessNaN(s, nan, 1, count, to); });
  EXPECT_EQ(Get(to), std::vector<double>{2});
  Run([&](Stream& s) { TakeUnlessNaN(s, number, 1, count, to); });
  EXPECT_EQ(Get(to), std::vector<double>{9});
}

TEST_P(TakeUnlessNaNTest, MeansDivideByTheWeight) {
  const View sums = Input({3}, {3, -1, 0.5}), mean = Output({3});
  const View four = Input({1}, {4}), zero = Input({1}, {0});
  Run([&](Stream& s) { MeanOf(s, sums, four, mean); });
  EXPECT_EQ(Get(mean), (std::vector<double>{0.75, -0.25, 0.125}));
  Run([&](Stream& s) { MeanOf(s, sums, zero, mean); });
  EXPECT_EQ(Get(mean), std::vector<double>(3, 0));
  ExpectRefused([&](Stream& s) { MeanOf(s, sums, sums, mean); }, "[mean_of] weight");
  ExpectRefused([&](Stream& s) { MeanOf(s, sums, four, sums); }, "overlap");
}

TEST_P(TakeUnlessNaNTest, BiasesMoveTowardsTheMean) {
  const View loads = Input({4}, {7, 1, 3, 1}), bias = Input({4}, {0.5, 0, 1, -1});
  const View nan = Input({1}, {kNaN}), number = Input({1}, {1}), none = Input({4}, {0, 0, 0, 0});
  Run([&](Stream& s) { MoveBias(s, nan, loads, 0.25f, bias); });
  Run([&](Stream& s) { MoveBias(s, number, none, 0.25f, bias); });
  EXPECT_EQ(Get(bias), (std::vector<double>{0.5, 0, 1, -1}));
  Run([&](Stream& s) { MoveBias(s, number, loads, 0.25f, bias); });
  EXPECT_EQ(Get(bias), (std::vector<double>{0.25, 0.25, 1, -0.75}));
  ExpectRefused([&](Stream& s) { MoveBias(s, number, number, 1, bias); }, "[move_bias] loads");
  ExpectRefused([&](Stream& s) { MoveBias(s, loads, loads, 1, bias); }, "[move_bias] coefficient");
}

TEST_P(TakeUnlessNaNTest, RefusesWrongArguments) {
  const View one = Input({1}, {1}), to = Output({3}), from = Input({3}, {1, 2, 3});
  const View count = Input({3}, {1, 2, 3}, DType::kInt64), half = Output({3}, kBF16);
  const auto call = [&](float divisor, const View& a, const View& b) {
    return [=](Stream& s) { TakeUnlessNaN(s, one, divisor, a, b); };
  };
  ExpectRefused(call(0, from, to), "divisor is not positive");
  ExpectRefused(call(2, count, count), "divisor of int64");
  ExpectRefused(call(1, from, count), "[take_unless_nan] to");
  ExpectRefused(call(1, half, half), "[take_unless_nan] from");
  ExpectRefused(call(1, from, from), "overlap");
  ExpectRefused([&](Stream& s) { CountBatch(s, to); }, "[count_batch] count");
}

}  // namespace
}  // namespace fsdp
