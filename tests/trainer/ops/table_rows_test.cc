#include "trainer/ops/table_rows.h"

#include <algorithm>
#include <set>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

constexpr DType kI64 = DType::kInt64, kI32 = DType::kInt32;

class TableRowsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(TableRowsTest, kF32, kBF16);

TEST_P(TableRowsTest, TakesAndPutsRows) {
  Random random(3, dtype());
  for (const int64_t width : {1, 3, 16, 130}) {
    const std::vector<double> values = random.Vector(5 * width), listed = random.Vector(4 * width);
    const std::vector<double> at{4, -1, 0, 2};
    const View table = Input({5, width}, values), places = Input({4}, at, kI64);
    const View taken = Output({4, width});
    Run([&](Stream& s) { TakeRows(s, table, places, taken); });
    std::vector<double> want(4 * width);
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < width && at[i] >= 0; ++j) {
        want[i * width + j] = values[int64_t(at[i]) * width + j];
      }
    }
    EXPECT_EQ(Get(taken), want);

    const View rows = Input({4, width}, listed);
    Run([&](Stream& s) { PutRows(s, rows, places, table); });
    want = values;
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < width && at[i] >= 0; ++j) {
        want[int64_t(at[i]) * width + j] = listed[i * width + j];
      }
    }
    EXPECT_EQ(Get(table), want);
    Clear();
  }
}

TEST_P(TableRowsTest, RoundsTakeEachRowOnce) {
  // Three owners, of whom one is asked for nothing.
  std::vector<double> rows;
  for (const int64_t count : {40, 0, 21}) {
    std::vector<int64_t> of_owner;
    for (int64_t i = 0; i < count; ++i) of_owner.push_back(i * i * 7919 % 104729);
    std::ranges::sort(of_owner, {}, RowKey);
    rows.insert(rows.end(), of_owner.begin(), of_owner.end());
  }
  rows.resize(70, 0);  // Rows behind the last owner's are ignored.
  const View row = Input({70}, rows, kI64), owners = Input({4}, {0, 40, 40, 61}, kI32);
  for (int log2_rounds = 0; log2_rounds < 4; ++log2_rounds) {
    constexpr int64_t kCapacity = 40;
    std::set<double> seen;
    for (int64_t round = 0; round < int64_t{1} << log2_rounds; ++round) {
      const View places = Output({3, kCapacity}, kI64), ids = Output({3, kCapacity}, kI64);
      Run([&](Stream& s) { PlacesOfRound(s, {round, log2_rounds}, row, owners, places, ids); });
      const std::vector<double> place = Get(places), id = Get(ids);
      for (size_t i = 0; i < place.size(); ++i) {
        if (place[i] < 0) {
          EXPECT_EQ(id[i], -1);
          continue;
        }
        EXPECT_TRUE(seen.insert(place[i]).second);
        EXPECT_EQ(id[i], rows[size_t(place[i])]);
        EXPECT_EQ(RoundOf(RowKey(int64_t(id[i])), log2_rounds), round);
        EXPECT_EQ(place[i] < 40 ? 0 : 2, int64_t(i) / kCapacity);
        if (i % kCapacity > 0) {
          EXPECT_LT(RowKey(int64_t(id[i - 1])), RowKey(int64_t(id[i])));
        }
      }
    }
    EXPECT_EQ(seen.size(), 61u);
  }
}

TEST_P(TableRowsTest, RefusesWrongArguments) {
  const View table = Input({2, 3}, {1, 2, 3, 4, 5, 6}), places = Input({2}, {0, 1}, kI64);
  const View to = Output({2, 3}), narrow = Output({2, 2}), one = Output({1, 3});
  ExpectRefused([&](Stream& s) { TakeRows(s, table, places, narrow); }, "[take_rows] from");
  ExpectRefused([&](Stream& s) { TakeRows(s, table, places, one); }, "[take_rows] places");
  ExpectRefused([&](Stream& s) { PutRows(s, to, places, to); }, "overlap");
  const View owners = Input({3}, {0, 1, 2}, kI32), ids = Output({2, 4}, kI64);
  const View other = Output({2, 4}, kI64), three = Output({3, 4}, kI64);
  const auto call = [&](ExchangeRound round, const View& at) {
    return [=](Stream& s) { PlacesOfRound(s, round, places, owners, at, ids); };
  };
  ExpectRefused(call({2, 1}, other), "[places_of_round] round");
  ExpectRefused(call({0, 63}, other), "[places_of_round] log2_rounds");
  ExpectRefused(call({0, 0}, three), "[places_of_round] ids");
  ExpectRefused(call({0, 0}, ids), "overlap");
}

}  // namespace
}  // namespace fsdp
