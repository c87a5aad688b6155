#include "trainer/comm/mesh.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace fsdp {
namespace {

TEST(MeshTest, ShardGroupsAreNeighboursAndReplicateGroupsAreStrided) {
  const Mesh mesh(/*world_rank=*/6, /*world_size=*/8, /*shard_size=*/4);
  EXPECT_EQ(mesh.coordinate(), (Mesh::Coordinate{1, 2, 0, 0}));
  EXPECT_EQ(mesh.ShardGroup(), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.ReplicateGroup(), (std::vector<int>{2, 6}));
  EXPECT_EQ(mesh.data_coordinate(), 6);
  EXPECT_EQ(mesh.data_size(), 8);
}

TEST(MeshTest, EveryRankIsAtItsPlaceInItsGroupsForEveryFactor) {
  for (int world = 1; world <= 12; ++world) {
    for (int f = 1; f <= world; ++f) {
      if (world % f != 0) continue;
      std::set<int> shard_groups, replicate_groups;
      for (int rank = 0; rank < world; ++rank) {
        const Mesh mesh(rank, world, f);
        const auto at = mesh.coordinate();
        EXPECT_EQ(mesh.RankOf(at), rank);
        ASSERT_EQ(mesh.ShardGroup().size(), static_cast<size_t>(f));
        ASSERT_EQ(mesh.ReplicateGroup().size(), static_cast<size_t>(world / f));
        EXPECT_EQ(mesh.ShardGroup()[at.shard], rank);
        EXPECT_EQ(mesh.ReplicateGroup()[at.replicate], rank);
        shard_groups.insert(mesh.ShardGroup().front());
        replicate_groups.insert(mesh.ReplicateGroup().front());
      }
      EXPECT_EQ(shard_groups.size(), static_cast<size_t>(world / f));  // They partition the world.
      EXPECT_EQ(replicate_groups.size(), static_cast<size_t>(f));
    }
  }
}

TEST(MeshTest, RefusesWhatDoesNotDivide) {
  EXPECT_THROW(Mesh(0, 8, 3), std::invalid_argument);
  EXPECT_THROW(Mesh(0, 8, 0), std::invalid_argument);
  EXPECT_THROW(Mesh(0, 4, 8), std::invalid_argument);
  EXPECT_THROW(Mesh(4, 4, 4), std::invalid_argument);
  EXPECT_THROW(Mesh(-1, 4, 4), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
