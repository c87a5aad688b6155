// Embedding tables in checkpoints: rows that are dealt over ranks, at any world.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/verify.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/fsdp/row_placement.h"

namespace fsdp {
namespace {

constexpr int64_t kWidth = 3;
const std::vector<int64_t> kRows = {17, 2, 40};

// One rank's rows of three tables, bf16, and a sum of each; and a dense state beside them.
class RankRows {
 public:
  RankRows(const Layout& layout, const ShardPlace& place, std::vector<int64_t> rows = kRows)
      : dense_(layout, place, {"master"}), place_(place) {
    deal_.world = place.world;
    for (const int64_t n : rows) deal_.AddTable(n);
    values_.resize(static_cast<size_t>(deal_.own_rows() * kWidth), 0x7fc0);
    sums_.resize(static_cast<size_t>(deal_.own_rows()), -1);
    states_ = dense_.states();
    CheckpointState values{.name = kRowsState, .shards = {}, .grid = Grid::kRows};
    CheckpointState sums{.name = kRowSumsState, .shards = {}, .grid = Grid::kRows};
    for (int t = 0; t < std::ssize(rows); ++t) {
      const auto [begin, count] = deal_.RowsOf(t, place.rank);
      const std::string name = "table." + std::to_string(t);
      values.tensors.push_back({name, "",
                                View(reinterpret_cast<std::byte*>(&values_[begin * kWidth]),
                                     DType::kBFloat16, Shape{count, kWidth}),
                                rows[t]});
      sums.tensors.push_back(
          {name, "",
           View(reinterpret_cast<std::byte*>(&sums_[begin]), DType::kFloat32, Shape{count}),
           rows[t]});
    }
    states_.push_back(std::move(values));
    states_.push_back(std::move(sums));
  }

  const std::vector<CheckpointState>& states() const { return states_; }
  void Fill() {
    dense_.Fill(1);
    ForEach([](uint16_t& value, uint16_t want) { value = want; },
            [](float& sum, float want) { sum = want; });
  }
  // Elements that are not as Fill() leaves them.
  int64_t Wrong() {
    int64_t wrong = dense_.Difference(1).empty() ? 0 : 1;
    ForEach([&](uint16_t& value, uint16_t want) { wrong += value != want; },
            [&](float& sum, float want) { wrong += sum != want; });
    return wrong;
  }

 private:
  template <typename OfValue, typename OfSum>
  void ForEach(const OfValue& of_value, const OfSum& of_sum) {
    for (int64_t own = 0; own < deal_.own_rows(); ++own) {
      const auto row = deal_.At(place_.rank, own);
      if (!row) continue;
      const auto number = static_cast<uint16_t>(1000 * row->table + 10 * row->row);
      for (int64_t j = 0; j < kWidth; ++j) {
        of_value(values_[own * kWidth + j], static_cast<uint16_t>(number + j));
      }
      of_sum(sums_[own], number);
    }
  }

  RankStates dense_;
  const ShardPlace place_;
  RowPlacement deal_;
  std::vector<uint16_t> values_;
  std::vector<float> sums_;
  std::vector<CheckpointState> states_;
};

World Of(int world, int shards) {
  World of;
  of.world = world;
  of.shards = shards;
  return of;
}

void SaveRows(const World& world, const std::string& checkpoints) {
  const Layout layout = world.MakeLayout();
  MemoryStore store(/*timeout_s=*/60);
  std::vector<std::thread> ranks;
  std::vector<std::string> errors(world.world);
  for (int rank = 0; rank < world.world; ++rank) {
    ranks.emplace_back([&, rank] {
      const ShardPlace place = PlaceOf(rank, world.world, world.shards);
      RankRows rows(layout, place);
      rows.Fill();
      try {
        SaveCheckpoint(checkpoints, layout, place, rows.states(), MetaOf(5), store, 0, 0);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(errors, std::vector<std::string>(world.world));
}

std::string LoadError(const World& world, const std::string& directory,
                      const std::vector<int64_t>& tables) {
  const Layout layout = world.MakeLayout();
  RankRows rows(layout, PlaceOf(0, world.world, world.shards), tables);
  return testing::ErrorOf([&] {
    LoadCheckpoint(directory, layout, PlaceOf(0, world.world, world.shards), rows.states());
  });
}

const std::vector<std::pair<int, int>> kWorlds = {{1, 1}, {2, 2}, {3, 3}, {4, 2}, {5, 1}, {30, 30}};

TEST(Rows, AreReadAtEveryWorld) {
  for (const auto& [from_world, from_shards] : kWorlds) {
    const std::string dir = FreshDirectory("rows");
    SaveRows(Of(from_world, from_shards), dir);
    EXPECT_TRUE(VerifyCheckpoint(CheckpointHold(dir + "/step_5"), nullptr).damages.empty());
    for (const auto& [world, shards] : kWorlds) {
      const Layout layout = Of(world, shards).MakeLayout();
      for (int rank = 0; rank < world; ++rank) {
        const ShardPlace place = PlaceOf(rank, world, shards);
        RankRows rows(layout, place);
        LoadCheckpoint(dir + "/step_5", layout, place, rows.states());
        EXPECT_EQ(rows.Wrong(), 0) << from_world << " to " << rank << " of " << world;
      }
    }
  }
}

TEST(Rows, AReshardIsWhatTheOtherJobWouldHave) {
  const std::string dir = FreshDirectory("rows");
  for (const auto& [world, shards] : kWorlds) {
    SaveRows(Of(world, shards), dir + "/" + std::to_string(world));
  }
  for (const auto& [from, from_shards] : kWorlds) {
    for (const auto& [world, shards] : kWorlds) {
      const std::string out = dir + "/out", want = dir + "/" + std::to_string(world) + "/step_5";
      ReshardCheckpoint(dir + "/" + std::to_string(from) + "/step_5", world, shards, out, nullptr);
      ASSERT_EQ(ListSorted(out), ListSorted(want));
      for (const std::string& name : ListSorted(want)) {
        EXPECT_TRUE(ReadWholeFile(out + "/" + name) == ReadWholeFile(want + "/" + name))
            << from << " to " << world << ": " << name;
      }
      std::filesystem::remove_all(out);
    }
  }
}

TEST(Rows, OfOtherTablesAreRefused) {
  const std::string dir = FreshDirectory("rows");
  SaveRows(Of(2, 2), dir);
  const std::string step = dir + "/step_5";
  EXPECT_EQ(LoadError(Of(3, 3), step, kRows), "");
  EXPECT_NE(LoadError(Of(3, 3), step, {17, 2, 41}).find("other tables"), std::string::npos);
  EXPECT_NE(LoadError(Of(3, 3), step, {2, 17, 40}).find("other tables"), std::string::npos);
  EXPECT_NE(LoadError(Of(3, 3), step, {17, 2}).find("other tables"), std::string::npos);
  const Layout layout = Of(1, 1).MakeLayout();
  RankStates dense(layout, PlaceOf(0, 1, 1), {"master"});
  try {
    LoadCheckpoint(step, layout, PlaceOf(0, 1, 1), dense.states());
    ADD_FAILURE() << "tables were left out";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("holds table 'table.0'"), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp
