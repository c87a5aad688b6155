#include "trainer/ops/row_adagrad.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/optimizer_blocks.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/table_rows.h"

namespace fsdp {
namespace {

constexpr DType kI64 = DType::kInt64;
constexpr int64_t kRows = 23;
constexpr double kLr = 0.125, kScale = 0.5;

class RowAdagradTest : public OpTest {
 protected:
  // Rows that three ranks send: several send some rows, all send row 5, one sends nothing else.
  static std::vector<double> Ids(int64_t capacity) {
    std::vector<double> ids;
    for (const std::vector<int64_t>& of : {std::vector<int64_t>{5, 0, 22, 7}, {5}, {7, 5, 1, 22}}) {
      std::vector<int64_t> sorted = of;
      std::ranges::sort(sorted, {}, RowKey);
      sorted.resize(capacity, -1);
      ids.insert(ids.end(), sorted.begin(), sorted.end());
    }
    return ids;
  }

  void MakeOperands(int64_t width, double coefficient) {
    Random random(11, kF32), table(12, dtype());
    constexpr int64_t kCapacity = 5;
    ids = Ids(kCapacity);
    before = table.Vector(kRows * width);
    sums = random.Vector(kRows, 0, 2);
    gradients = random.Vector(3 * kCapacity * width);
    const UpdateFactors factors = FactorsAt(kLr, 0, 0, 4);
    o = {.ids = Input({3, kCapacity}, ids, kI64),
         .gradients = Input({3, kCapacity, width}, gradients, kF32),
         .factors = Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8),
         .coefficient = Input({1}, {coefficient}, kF32),
         .mean_scale = Input({1}, {2}, kF32),
         .loss_scale = Input({1}, {4}, kF32),
         .table = Input({kRows, width}, before),
         .sums = Input({kRows}, sums, kF32)};
  }

  // By the formulas, in float64.
  void Oracle(int64_t width, std::vector<double>& table, std::vector<double>& sum) const {
    table = before, sum = sums;
    for (int64_t row = 0; row < kRows; ++row) {
      std::vector<double> g(width);
      bool sent = false;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (int64_t(ids[i]) != row) continue;
        sent = true;
        for (int64_t j = 0; j < width; ++j) g[j] += gradients[i * width + j] * 2 / 4;
      }
      if (!sent) continue;
      for (const double value : g) sum[row] += value * value / static_cast<double>(width);
      for (int64_t j = 0; j < width; ++j) {
        table[row * width + j] -= kScale * kLr * g[j] / (std::sqrt(sum[row]) + 1e-8);
      }
    }
  }

  RowAdagradOptions options{.lr_scale = kScale, .seed = 9, .rank = 1, .world = 3};
  RowAdagradOperands o;
  std::vector<double> ids, before, sums, gradients;
};
FSDP_INSTANTIATE_OP_TEST(RowAdagradTest, kF32, kBF16);

TEST_P(RowAdagradTest, FollowsTheFormulas) {
  for (const int64_t width : {1, 8, 33, 70}) {
    MakeOperands(width, 1);
    Run([&](Stream& s) { RowAdagrad(s, options, o); });
    std::vector<double> table, sum;
    Oracle(width, table, sum);
    EXPECT_TRUE(AllNear(Get(o.sums), sum, Tolerance(kF32, width)));
    const std::vector<double> got = Get(o.table);
    if (dtype() == kF32) {
      EXPECT_TRUE(AllNear(got, table, Tolerance(kF32, width)));
    } else {  // One of its two neighbours; what nobody has sent keeps its bits.
      for (size_t i = 0; i < got.size(); ++i) {
        const double gap = Epsilon(kBF16) * std::max(std::abs(table[i]), 0x1p-6);
        EXPECT_LE(std::abs(got[i] - table[i]), gap + Tolerance(kF32, width)) << i;
        EXPECT_TRUE(table[i] != before[i] || got[i] == before[i]) << i;
      }
    }
    Clear();
  }
}

TEST_P(RowAdagradTest, SameBitsOfAnyThreads) {
  MakeOperands(33, 1);
  Run([&](Stream& s) { RowAdagrad(s, options, o); });
  const std::vector<double> table = Get(o.table), sum = Get(o.sums);
  ExpectSameBits([&](Stream& s) { RowAdagrad(s, options, o); }, {o.table, o.sums});
}

TEST_P(RowAdagradTest, SkipsWhereTheCoefficientIsNoNumber) {
  for (const double c :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    MakeOperands(8, c);
    Run([&](Stream& s) { RowAdagrad(s, options, o); });
    EXPECT_EQ(Get(o.table), before);
    EXPECT_EQ(Get(o.sums), sums);
    Clear();
  }
}

// The mean of many roundings is the value, and rounds differ with the update and the seed.
TEST_P(RowAdagradTest, RoundsToBf16ByDraws) {
  if (dtype() != kBF16) return;
  constexpr int64_t kWidth = 4096;
  const UpdateFactors factors = FactorsAt(0x1p-10, 0, 0, 1);
  const auto make = [&](uint64_t seed) {
    o = {.ids = Input({1, 1}, {0}, kI64),
         .gradients = Input({1, 1, kWidth}, std::vector<double>(kWidth, 1), kF32),
         .factors = Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8),
         .coefficient = Input({1}, {1}, kF32),
         .mean_scale = Input({1}, {1}, kF32),
         .loss_scale = std::nullopt,
         .table = Input({1, kWidth}, std::vector<double>(kWidth, 1)),
         .sums = Input({1}, {0}, kF32)};
    const RowAdagradOptions drawn{.seed = seed};
    Run([&](Stream& s) { RowAdagrad(s, drawn, o); });
    return Get(o.table);
  };
  const std::vector<double> got = make(1);
  double sum = 0;
  for (const double value : got) {
    EXPECT_TRUE(value == 1 || value == 1 - 0x1p-8) << value;
    sum += value;
  }
  // A quarter of them goes down; the mean of n draws has a deviation of sqrt(3 / 16 / n) steps.
  const double deviation = std::sqrt(3.0 / 16 / kWidth) * 0x1p-8;
  EXPECT_NEAR(sum / kWidth, 1 - 0x1p-10, 5 * deviation);
  EXPECT_NE(got, make(2));
}

TEST_P(RowAdagradTest, RefusesWrongArguments) {
  MakeOperands(8, 1);
  const auto refused = [&](auto change, const char* message) {
    RowAdagradOptions other = options;
    RowAdagradOperands operands = o;
    change(other, operands);
    ExpectRefused([=](Stream& s) { RowAdagrad(s, other, operands); }, message);
  };
  using Options = RowAdagradOptions;
  using Operands = RowAdagradOperands;
  refused([](Options& p, Operands&) { p.eps = 0; }, "[row_adagrad] eps");
  refused([](Options& p, Operands&) { p.lr_scale = -1; }, "[row_adagrad] lr_scale");
  refused([](Options& p, Operands&) { p.rank = 3; }, "[row_adagrad] rank");
  refused([](Options&, Operands& w) { w.sums = w.gradients; }, "[row_adagrad] sums");
  refused([](Options&, Operands& w) { w.gradients = w.table; }, "[row_adagrad] gradients");
  refused([](Options&, Operands& w) { w.mean_scale = w.sums; }, "[row_adagrad] mean_scale");
}

}  // namespace
}  // namespace fsdp
