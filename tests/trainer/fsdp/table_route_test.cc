#include "trainer/fsdp/table_route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/ops/table_rows.h"

namespace fsdp {
namespace {

std::vector<EmbeddingTable> Tables(double capacity = 2) {
  std::vector<EmbeddingTable> tables;
  for (const auto& [rows, bag] :
       std::vector<std::pair<int64_t, int64_t>>{{50, 2}, {1, 1}, {3000000000, 3}}) {
    tables.push_back({.name = "t" + std::to_string(tables.size()),
                      .rows = rows,
                      .width = 4,
                      .bag = bag,
                      .capacity = capacity});
  }
  return tables;
}

// A multiple of 64 bytes where a BumpAllocator may begin.
class Bytes {
 public:
  explicit Bytes(int64_t n) : memory_(static_cast<size_t>(n + 64)) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    view_ = {memory_.data() + (64 - at % 64), DType::kUInt8, Shape{n}};
  }
  const View& view() const { return view_; }

 private:
  std::vector<std::byte> memory_;
  View view_;
};

TEST(TableLayout, DealsEachRowToOneRank) {
  for (const int world : {1, 2, 3, 7, 100}) {
    std::vector<EmbeddingTable> tables = Tables();
    tables[2].rows = 23;
    const TableLayout layout = MakeTableLayout(tables, world, 4, 2);
    EXPECT_EQ(layout.own_rows(), (74 + world - 1) / world);
    std::set<std::pair<int, int64_t>> seen;
    for (int rank = 0; rank < world; ++rank) {
      std::map<int, int64_t> count;
      for (int64_t own = 0; own < layout.own_rows(); ++own) {
        const auto row = layout.At(rank, own);
        if (!row) continue;
        EXPECT_TRUE(seen.insert({row->table, row->row}).second);
        const auto [begin, n] = layout.RowsOf(row->table, rank);
        EXPECT_TRUE(begin <= own && own < begin + n);
        EXPECT_EQ(own, begin + count[row->table]++);
      }
      for (int t = 0; t < 3; ++t) EXPECT_EQ(layout.RowsOf(t, rank).count, count[t]);
    }
    EXPECT_EQ(seen.size(), 74u);
  }
}

TEST(TableLayout, ARoundGrowsWithARanksIdsNotWithTheWorld) {
  const auto asked = [](int world, int64_t rows, double capacity) {
    const TableLayout layout = MakeTableLayout(Tables(capacity), world, rows, 3);
    return layout.round_rows() * world;
  };
  EXPECT_EQ(asked(1, 100, 2), 100 * 3 * 6);  // No more than there are.
  EXPECT_EQ(asked(4, 100, 2), 2 * 100 * 3 * 6);
  EXPECT_EQ(asked(100, 1000, 2), asked(4, 1000, 2));
  EXPECT_EQ(asked(4, 100, 1), 100 * 3 * 6);
  EXPECT_EQ(asked(1000, 10, 2), 1000 * kLeastRows);
  EXPECT_THROW(MakeTableLayout(Tables(), 1, 1 << 30, 1), std::invalid_argument);
}

TEST(TableRoute, AsksForEachRowOnceInFewRounds) {
  for (const int world : {1, 3, 8}) {
    for (const double capacity : {1.0, 4.0}) {
      constexpr int64_t kRows = 60, kBatches = 2;
      const TableLayout layout = MakeTableLayout(Tables(capacity), world, kRows, kBatches);
      std::mt19937_64 random(3);
      std::vector<std::vector<uint64_t>> ids(kBatches);
      for (auto& batch : ids) {
        for (int64_t i = 0; i < layout.batch_ids(); ++i) {
          batch.push_back(i % 7 == 0 ? ~uint64_t{0} : i % 3 == 0 ? i % 5 : random());
        }
      }
      const Bytes bytes(TableRouteBytes(layout)), work(TableRouteWorkBytes(layout));
      const TableRoute route = CarveTableRoute(layout, bytes.view());
      TableRouteMaker maker(layout, route, work.view());
      for (const auto& batch : ids) {
        maker.Add({reinterpret_cast<const std::byte*>(batch.data()), DType::kInt32,
                   Shape{kRows, layout.slots(), 2}});
      }
      maker.Finish();

      const int32_t* const owners = route.owners.As<int32_t>();
      const int64_t* const rows = route.rows.As<int64_t>();
      const int log2 = *route.log2_rounds.As<int32_t>();
      std::map<std::pair<int, int64_t>, int64_t> in_round;
      std::vector<int> owner_of(layout.step_ids());
      EXPECT_EQ(owners[0], 0);
      for (int w = 0; w < world; ++w) {
        for (int32_t i = owners[w]; i < owners[w + 1]; ++i) {
          owner_of[i] = w;
          ++in_round[{w, RoundOf(RowKey(rows[i]), log2)}];
          EXPECT_TRUE(i == owners[w] || RowKey(rows[i - 1]) < RowKey(rows[i]));
        }
      }
      int64_t most = 0;
      for (const auto& [where, count] : in_round) most = std::max(most, count);
      EXPECT_LE(most, layout.round_rows());
      EXPECT_TRUE(log2 == 0 || owners[world] > layout.round_rows());

      std::set<int64_t> named;
      for (int64_t m = 0; m < kBatches; ++m) {
        const int32_t* const places = route.PlacesOf(layout, m).As<int32_t>();
        const int32_t* const order = route.OrderOf(layout, m).As<int32_t>();
        std::vector<std::pair<int32_t, int32_t>> present;
        for (int64_t i = 0; i < layout.batch_ids(); ++i) {
          const uint64_t id = ids[m][i];
          if (id == ~uint64_t{0}) {
            EXPECT_EQ(places[i], -1);
            continue;
          }
          const int64_t slot = i % layout.slots();
          const int t = slot < 2 ? 0 : slot < 3 ? 1 : 2;
          const auto row = layout.At(owner_of[places[i]], rows[places[i]]);
          ASSERT_TRUE(row.has_value());
          EXPECT_EQ(row->table, t);
          EXPECT_EQ(row->row, int64_t(id % uint64_t(layout.tables[t].rows)));
          present.emplace_back(places[i], static_cast<int32_t>(i));
          named.insert(places[i]);
        }
        std::ranges::sort(present);
        for (int64_t k = 0; k < layout.batch_ids(); ++k) {
          EXPECT_EQ(order[k], k < std::ssize(present) ? present[k].second : -1);
        }
      }
      EXPECT_EQ(std::ssize(named), owners[world]);
    }
  }
}

}  // namespace
}  // namespace fsdp
