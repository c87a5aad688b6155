#include "trainer/data/clicks/synthetic_clicks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace fsdp::testing {
namespace {

constexpr int64_t kDense = 4, kTables = 6, kRows = 24;

SyntheticClicks Clicks(int64_t size, uint64_t samples) {
  return {{kDense, {1, 1, 1, 1, 1, 3}, std::vector<int64_t>(kTables, kRows)}, size, samples};
}

std::vector<int64_t> FirstOf(int64_t n) {
  std::vector<int64_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(SyntheticClicks, AreDrawnOnceAndForAll) {
  const SyntheticClicks a = Clicks(100, 1), again = Clicks(50, 1), other = Clicks(100, 2);
  std::vector<float> x(kDense), y(kDense);
  std::vector<int32_t> ids(16), more(16);
  int absent = 0, differ = 0;
  for (int64_t i = 0; i < 50; ++i) {
    const float label = a.Read(i, x, ids);
    EXPECT_EQ(again.Read(i, y, more), label);
    EXPECT_EQ(x, y);
    EXPECT_EQ(ids, more);
    EXPECT_EQ(*a.Probability(i), *again.Probability(i));
    for (size_t slot = 0; slot < 8; ++slot) {
      const bool is_absent = ids[2 * slot] == -1;
      EXPECT_EQ(ids[2 * slot + 1], is_absent ? -1 : 0);
      EXPECT_LT(ids[2 * slot], kRows);
      EXPECT_TRUE(!is_absent || slot >= 5) << "a bag of one has an id";
      absent += is_absent ? 1 : 0;
    }
    other.Read(i, y, more);
    differ += x != y && ids != more ? 1 : 0;
  }
  EXPECT_EQ(differ, 50);
  EXPECT_GT(absent, 20);
  EXPECT_LT(absent, 130);
}

// Labels follow the probabilities: over 20000 clicks the mean loss of the function itself is its
// entropy to five standard deviations of that mean, which are below 5 x 0.7 / sqrt(20000).
TEST(SyntheticClicks, HaveTheFloorThatIsSaid) {
  constexpr int64_t kN = 20000;
  const SyntheticClicks clicks = Clicks(kN, 7);
  const ClickFloor floor = FloorOf(clicks, FirstOf(kN));
  std::vector<float> x(kDense);
  std::vector<int32_t> ids(16);
  double loss = 0, labels = 0;
  for (int64_t i = 0; i < kN; ++i) {
    const double p = *clicks.Probability(i);
    const float label = clicks.Read(i, x, ids);
    loss -= label == 1 ? std::log(p) : std::log1p(-p);
    labels += label;
  }
  EXPECT_NEAR(loss / kN, floor.entropy, 5 * 0.7 / std::sqrt(kN));
  const double mean = labels / kN;
  const double base = -mean * std::log(mean) - (1 - mean) * std::log1p(-mean);
  EXPECT_NEAR(floor.normalized, floor.entropy / base, 0.02);
  EXPECT_LT(floor.normalized, 0.9);
}

// A logistic regression on the same columns, a weight for each number and each id, learns the first
// order alone: by gradient descent, click by click, it ends more than 0.05 above the floor. The
// first case is the columns of configs/models/dhen-small.yaml.
TEST(SyntheticClicks, AreBeyondALogisticRegression) {
  constexpr int64_t kTrain = 40000, kHeld = 10000;
  for (const std::vector<int64_t>& bags :
       {std::vector<int64_t>{1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 3}}) {
    const ClickColumns columns{kDense, bags, std::vector<int64_t>(kTables, kRows)};
    const SyntheticClicks clicks(columns, kTrain + kHeld, 3);
    std::vector<float> x(kDense);
    std::vector<int32_t> ids(2 * static_cast<size_t>(columns.slots()));
    std::vector<double> weights(1 + kDense + kTables * kRows);
    std::vector<std::pair<size_t, double>> active;
    const auto predict = [&](int64_t i, float& label) {
      label = clicks.Read(i, x, ids);
      active.assign(1, {0, 1});
      for (size_t k = 0; k < kDense; ++k) active.emplace_back(1 + k, x[k]);
      for (size_t slot = 0; slot < ids.size() / 2; ++slot) {
        if (ids[2 * slot] < 0) continue;
        const size_t table = std::min<size_t>(slot, kTables - 1);
        active.emplace_back(1 + kDense + table * kRows + static_cast<size_t>(ids[2 * slot]), 1);
      }
      double z = 0;
      for (const auto& [at, value] : active) z += weights[at] * value;
      return 1 / (1 + std::exp(-z));
    };
    float label = 0;
    for (int epoch = 0; epoch < 4; ++epoch) {
      const double rate = 0.02 / (1 + epoch * epoch);
      for (int64_t i = 0; i < kTrain; ++i) {
        const double p = predict(i, label);
        for (const auto& [at, value] : active) weights[at] -= rate * (p - label) * value;
      }
    }
    std::vector<int64_t> held(kHeld);
    std::iota(held.begin(), held.end(), kTrain);
    const ClickFloor floor = FloorOf(clicks, held);
    double loss = 0, labels = 0;
    for (const int64_t i : held) {
      const double p = predict(i, label);
      loss -= label == 1 ? std::log(p) : std::log1p(-p);
      labels += label;
    }
    const double mean = labels / kHeld;
    const double base = -mean * std::log(mean) - (1 - mean) * std::log1p(-mean);
    const double reached = loss / kHeld / base;
    EXPECT_LT(reached, 1) << "it has learnt something";
    EXPECT_GT(reached, floor.normalized + 0.05);
    RecordProperty("above_the_floor_" + std::to_string(bags.back()),
                   std::to_string(reached - floor.normalized));
  }
}

}  // namespace
}  // namespace fsdp::testing
