// Embedding tables as exports and runs that begin from a checkpoint read them.
#include "trainer/weights/merged_weights.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/testing/toy_tables.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/row_placement.h"
#include "trainer/weights/hf_tensors.h"

namespace fsdp {
namespace {

using testing::ToyTables;

float ElementOf(int table, int64_t i) { return static_cast<float>(10000 * table + i); }

// A checkpoint of a world of three: parameters are zero, an element of a table says which it is.
std::string SaveTables(const std::string& checkpoints) {
  constexpr int kWorld = 3;
  const ToyTables model;
  const Layout layout = MakeLayout(ShapesOf(model), WrapPolicy(), kWorld);
  MemoryStore store(/*timeout_s=*/60);
  CheckpointMeta meta;
  meta.step = 1;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      RowPlacement deal{.world = kWorld};
      for (const EmbeddingTable& table : model.tables()) deal.AddTable(table.rows);
      std::vector<std::vector<float>> shards, rows;
      CheckpointState master{.name = "master", .shards = {}};
      for (const FlatParameter& flat : layout.flat_parameters) {
        shards.emplace_back(static_cast<size_t>(flat.shard_size));
      }
      for (std::vector<float>& shard : shards) {
        master.shards.emplace_back(reinterpret_cast<std::byte*>(shard.data()), DType::kFloat32,
                                   Shape{std::ssize(shard)});
      }
      CheckpointState tables{.name = kRowsState, .shards = {}, .grid = Grid::kRows};
      for (int t = 0; t < ToyTables::kTables; ++t) {
        const auto [begin, count] = deal.RowsOf(t, rank);
        std::vector<float>& values = rows.emplace_back();
        for (int64_t own = begin; own < begin + count; ++own) {
          const int64_t row = deal.At(rank, own)->row;
          for (int64_t j = 0; j < ToyTables::kWidth; ++j) {
            values.push_back(ElementOf(t, row * ToyTables::kWidth + j));
          }
        }
        tables.tensors.push_back({model.tables()[t].name, "",
                                  View(reinterpret_cast<std::byte*>(values.data()), DType::kFloat32,
                                       Shape{count, ToyTables::kWidth}),
                                  model.tables()[t].rows});
      }
      SaveCheckpoint(checkpoints, layout, PlaceOn(Mesh(rank, kWorld, kWorld)),
                     {std::move(master), std::move(tables)}, meta, store, 0, 0);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return checkpoints + "/step_1";
}

TEST(MergedWeights, ReadTablesOfAnyWorld) {
  const std::string saved = SaveTables(testing::FreshDirectory("tables"));
  const ToyTables model;
  CheckpointReader reader(saved);
  MergedWeights weights(reader, model, "master");
  for (int t = 0; t < ToyTables::kTables; ++t) {
    const int64_t elements = model.tables()[t].rows * ToyTables::kWidth;
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, elements}, {3, 21}, {elements - 5, elements}}) {
      std::vector<float> got(static_cast<size_t>(end - begin));
      weights.ReadTable(t, begin, got);
      for (int64_t i = begin; i < end; ++i) ASSERT_EQ(got[i - begin], ElementOf(t, i)) << t;
    }
  }
  const HfTensors tensors(model);
  EXPECT_EQ(tensors.tensors().back().name(), "tables.word");
  EXPECT_EQ(tensors.tensors().back().shape(), (Shape{300, ToyTables::kWidth}));
}

TEST(MergedWeights, RefusesTablesOfAnotherSize) {
  const std::string saved = SaveTables(testing::FreshDirectory("tables"));
  CheckpointReader reader(saved);
  const ToyTables other({.words = 301});
  EXPECT_THROW(MergedWeights(reader, other, "master"), CheckpointError);
}

}  // namespace
}  // namespace fsdp
