#include "trainer/comm/mesh.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/comm/mesh_communicators.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

TEST(RankGroup, RanksInWords) {
  EXPECT_EQ(RanksInWords({3}), "rank 3");
  EXPECT_EQ(RanksInWords({2, 3}), "ranks 2, 3");
  EXPECT_EQ(RanksInWords({0, 1, 2}), "ranks 0 to 2");
  EXPECT_EQ(RanksInWords({1, 4, 5, 6, 7, 9}), "ranks 1, 4 to 7, 9");
}

TEST(MeshTest, ShardGroupsAreNeighboursAndReplicateGroupsAreStrided) {
  const Mesh mesh(/*world_rank=*/6, /*world_size=*/8, /*shard_size=*/4);
  EXPECT_EQ(mesh.coordinate(), (Mesh::Coordinate{1, 2}));
  EXPECT_EQ(mesh.RanksOf(Group::kGather), RankGroup({4, 5, 6, 7}, 6));
  EXPECT_EQ(mesh.RanksOf(Group::kReplicate), RankGroup({2, 6}, 6));
  EXPECT_EQ(mesh.data_coordinate(), 6);
  EXPECT_EQ(mesh.data_size(), 8);
}

// Two hosts of two ranks, numbered in turns.
TEST(MeshTest, PositionsAreNotNumbers) {
  const std::vector<int> ranks = {0, 2, 1, 3};
  const Mesh mesh(/*world_rank=*/1, /*world_size=*/4, /*shard_size=*/2, ranks);
  EXPECT_EQ(mesh.coordinate(), (Mesh::Coordinate{1, 0}));
  EXPECT_EQ(mesh.position(), 2);
  EXPECT_EQ(mesh.data_coordinate(), 2);
  EXPECT_EQ(mesh.RanksOf(Group::kGather), RankGroup({1, 3}, 1));
  EXPECT_EQ(mesh.RanksOf(Group::kReplicate), RankGroup({0, 1}, 1));
  EXPECT_EQ(mesh.RanksOf(Group::kWorld), RankGroup(ranks, 1));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(mesh.RankOf(mesh.CoordinateOf(rank)), rank);
  for (const std::vector<int>& wrong : std::vector<std::vector<int>>{
           {0, 1, 2}, {0, 1, 2, 2}, {0, 1, 2, 4}, {-1, 0, 1, 2}, {0, 1, 2, 3, 3}}) {
    EXPECT_THROW(Mesh(1, 4, 2, wrong), std::invalid_argument);
  }
}

TEST(MeshTest, SecondaryGroupsAreNeighboursAmongShards) {
  const Mesh mesh(/*world_rank=*/9, /*world_size=*/12, /*shard_size=*/6, {}, /*secondary_size=*/2);
  EXPECT_EQ(mesh.RanksOf(Group::kGather), RankGroup({6, 7, 8, 9, 10, 11}, 9));
  EXPECT_EQ(mesh.RanksOf(Group::kSecondary), RankGroup({8, 9}, 9));
  EXPECT_EQ(Mesh(9, 12, 6).RanksOf(Group::kSecondary).size(), 1);
  EXPECT_THROW(Mesh(9, 12, 6, {}, 4), std::invalid_argument);
}

// Two copies over two hosts of three ranks each.
TEST(MeshTest, HopsAreInsideHostsAndAcrossThem) {
  const Mesh mesh(/*world_rank=*/10, /*world_size=*/12, /*shard_size=*/6, {}, /*secondary_size=*/1,
                  /*inside_size=*/3);
  EXPECT_EQ(mesh.RanksOf(Group::kInside), RankGroup({9, 10, 11}, 10));
  EXPECT_EQ(mesh.RanksOf(Group::kAcross), RankGroup({7, 10}, 10));
  // One hop.
  EXPECT_EQ(Mesh(10, 12, 6).RanksOf(Group::kInside), Mesh(10, 12, 6).RanksOf(Group::kReduce));
  EXPECT_EQ(Mesh(10, 12, 6).RanksOf(Group::kAcross).size(), 1);
  EXPECT_THROW(Mesh(10, 12, 6, {}, 1, 4), std::invalid_argument);
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
        const RankGroup shard = mesh.RanksOf(Group::kGather);
        const RankGroup replicate = mesh.RanksOf(Group::kReplicate);
        EXPECT_EQ(mesh.RanksOf(Group::kReduce), shard);
        EXPECT_EQ(mesh.RanksOf(Group::kWorld), RankGroup::World(rank, world));
        ASSERT_EQ(shard.size(), f);
        ASSERT_EQ(replicate.size(), world / f);
        EXPECT_EQ(shard.rank(), at.shard);
        EXPECT_EQ(replicate.rank(), at.replicate);
        shard_groups.insert(shard.NameOf(0));
        replicate_groups.insert(replicate.NameOf(0));
      }
      EXPECT_EQ(shard_groups.size(), static_cast<size_t>(world / f));  // They partition the world.
      EXPECT_EQ(replicate_groups.size(), static_cast<size_t>(f));
    }
  }
}

using Groups = std::vector<Group>;
constexpr Group kGather = Group::kGather, kReduce = Group::kReduce, kReplicate = Group::kReplicate,
                kWorld = Group::kWorld;

// The group that a communicator is made over.
struct Recorded : Communicator {
  explicit Recorded(const RankGroup& group) : Communicator(group, DeviceType::kSim), group(group) {}
  void Abort(const std::string&) override {}
  void Enqueue(Stream&, Operation, const CollectiveCall&) override {}
  const RankGroup group;
};

TEST(MeshCommunicatorsTest, GroupsOfTheSameRanksShareOne) {
  // Sharded by all: gathers, and all that is reduced.
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(1, 4, 4), 2), (Groups{kGather, kReduce}));
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(1, 4, 4), 1), Groups{kGather});
  // Replicated: nobody gathers.
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(1, 4, 1), 2), Groups{kReplicate});
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(1, 4, 1), 1), Groups{kReplicate});
  // Both.
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(1, 4, 2), 2),
            (Groups{kGather, kReduce, kReplicate, kWorld}));
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(1, 4, 2), 1), (Groups{kGather, kReplicate, kWorld}));
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(0, 1, 1), 2), Groups{});
  // Gathers overtake reductions among the same neighbours, too.
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(1, 4, 4, {}, 2, 2), 2),
            (Groups{kGather, Group::kSecondary, kReduce, Group::kInside, Group::kAcross}));
  EXPECT_EQ(MeshCommunicators::Connected(Mesh(1, 4, 4, {}, 2, 2), 1),
            (Groups{kGather, Group::kSecondary, Group::kAcross}));
}

TEST(MeshCommunicatorsTest, AWorldNeedsCommunicators) {
  EXPECT_THROW(MeshCommunicators(Mesh(0, 2, 2), 2, nullptr), std::invalid_argument);
  EXPECT_THROW(MeshCommunicators(Mesh(0, 1, 1), 3, nullptr), std::invalid_argument);
}

// Whatever is shared, a group's communicator has the group's ranks; and a name is of one group.
TEST(MeshCommunicatorsTest, EachGroupIsOverItsOwnRanks) {
  for (int world = 1; world <= 8; ++world) {
    for (int f = 1; f <= world; ++f) {
      if (world % f != 0) continue;
      for (const int queues : {1, 2}) {
        std::map<std::string, std::vector<int>> named;
        for (int rank = 0; rank < world; ++rank) {
          const MeshCommunicators made(
              Mesh(rank, world, f), queues, [&](const std::string& name, const RankGroup& group) {
                EXPECT_EQ(named.emplace(name, group.ranks()).first->second, group.ranks()) << name;
                return std::make_unique<Recorded>(group);
              });
          for (const Group group : {kGather, kReduce, kReplicate, kWorld}) {
            const RankGroup want = made.mesh().RanksOf(group);
            const auto* over = static_cast<const Recorded*>(made.Over(group));
            ASSERT_EQ(over == nullptr, want.size() == 1) << Name(group);
            if (over != nullptr) {
              EXPECT_EQ(over->group, want) << Name(group);
            }
          }
          if (f > 1) {
            EXPECT_EQ(made.Over(kGather) == made.Over(kReduce), queues == 1);
          }
        }
      }
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
