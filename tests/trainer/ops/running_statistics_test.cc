#include "trainer/ops/running_statistics.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/harness.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class RunningMeanTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(RunningMeanTest, kF32, kBF16, kF16);

TEST_P(RunningMeanTest, MovesTowardsTheMeanOfRowsThatCount) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 3}, {9, 31}, {17, 257}, {64, 600}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
    const RandomStream random(7, "rows", static_cast<uint64_t>(rows));
    std::vector<double> values, weights, before;
    for (int64_t i = 0; i < rows * columns; ++i) values.push_back(random.Normal(i) + 2);
    // Weights of any kind count alike; a row without one may hold anything.
    for (int64_t i = 0; i < rows; ++i) weights.push_back(i % 3 == 1 ? 0 : 0.25 * (i + 1));
    for (int64_t i = 0; i < rows * columns; ++i) {
      if (weights[i / columns] == 0) values[i] = kNaN;
    }
    for (int64_t j = 0; j < columns; ++j) before.push_back(0.5 - j % 7);
    const View x = Input({rows, columns}, values), weight = Input({rows}, weights, kF32);
    const View running = Output({columns}, kF32);
    Set(running, before);
    const std::vector<double> stored = Get(x);
    constexpr float kMomentum = 0.1f;
    const auto update = [&](Stream& s) { UpdateRunningMean(s, x, weight, kMomentum, running); };
    Run(update);
    const std::vector<double> got = Get(running);
    for (int64_t j = 0; j < columns; ++j) {
      double sum = 0, counted = 0;
      for (int64_t i = 0; i < rows; ++i) {
        if (weights[i] == 0) continue;
        sum += stored[i * columns + j];
        ++counted;
      }
      const double want = before[j] + double{kMomentum} * (sum / counted - before[j]);
      EXPECT_EQ(got[j], static_cast<float>(want)) << j;  // Rounded once.
    }
    Set(running, before);
    ExpectSameBits(update, {running});
    Clear();
  }
}

TEST_P(RunningMeanTest, StaysWhereNoRowCounts) {
  const View x = Input({2, 3}, {kNaN, 1, 2, 3, 4, kNaN}), weight = Input({2}, {0, 0}, kF32);
  const View running = Input({3}, {0.1f, -2, 3}, kF32);
  const std::vector<double> before = Get(running);
  Run([&](Stream& s) { UpdateRunningMean(s, x, weight, 0.5f, running); });
  EXPECT_EQ(Get(running), before);
}

TEST_P(RunningMeanTest, RefusesWrongArguments) {
  const View x = Input({2, 3}, {1, 2, 3, 4, 5, 6}), weight = Input({2}, {1, 1}, kF32);
  const View running = Output({3}, kF32), other = Output({2}, kF32);
  const auto call = [&](const View& w, float momentum, const View& r) {
    return [=](Stream& s) { UpdateRunningMean(s, x, w, momentum, r); };
  };
  ExpectRefused(call(running, 0.1f, running), "[update_running_mean] weights");
  ExpectRefused(call(weight, 0.1f, other), "[update_running_mean] running");
  ExpectRefused(call(weight, 1.5f, running), "momentum");
  ExpectRefused(call(weight, -0.1f, running), "momentum");
}

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
