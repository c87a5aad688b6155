#include "trainer/comm/hosts/host_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>

#include "tests/trainer/comm/ranks.h"
#include "trainer/core/errors.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HostPlacementTest, NumbersHostsByTheirLowestRanks) {
  const HostPlacement placement({7, 3, 7, 3, 9, 7});
  EXPECT_EQ(placement.hosts(), 3);
  EXPECT_THAT(placement.RanksOf(0), ElementsAre(0, 2, 5));
  EXPECT_THAT(placement.RanksOf(1), ElementsAre(1, 3));
  EXPECT_THAT(placement.RanksOf(2), ElementsAre(4));
  EXPECT_EQ(placement.LeaderOf(1), 1);
  EXPECT_EQ(placement.LargestHost(), 3);
  EXPECT_EQ(placement.NamesOf(0), "ranks 0, 2, 5");
  EXPECT_EQ(placement.NamesOf(2), "rank 4");
}

TEST(HostPlacementTest, FindsHowManyOfAGroupAreTogether) {
  const HostPlacement turns({0, 1, 0, 1, 0, 1, 0, 1});
  EXPECT_EQ(turns.Together(8), 4);
  EXPECT_EQ(turns.Together(4), 4);
  EXPECT_EQ(turns.Together(2), 2);
  EXPECT_EQ(turns.Together(1), 1);
  const HostPlacement unequal({0, 0, 0, 0, 1, 1});
  EXPECT_EQ(unequal.Together(6), 0);
  EXPECT_EQ(unequal.Together(3), 0);
  EXPECT_EQ(unequal.Together(2), 2);
  EXPECT_EQ(HostPlacement({0, 1, 2}).Together(3), 1);
  EXPECT_EQ(HostPlacement({0, 0, 0}).Together(3), 3);
}

TEST(HostPlacementTest, SharesTheWorkOfAHost) {
  const HostPlacement placement({0, 0, 0, 1, 1});
  EXPECT_EQ(placement.Partner(0, 1), 3);
  EXPECT_EQ(placement.Partner(1, 1), 4);
  EXPECT_EQ(placement.Partner(2, 1), 3);  // Around.
  EXPECT_EQ(placement.Partner(4, 0), 1);
  EXPECT_THAT(placement.Served(3), ElementsAre(0, 2));
  EXPECT_THAT(placement.Served(2), IsEmpty());
  EXPECT_EQ(placement.MostServed(), 2);
}

// Every rank's numbers reach every other host over a connection that both ends know of.
TEST(HostPlacementTest, ConnectionsHaveTwoEnds) {
  for (const auto& key : {std::vector<int>{0, 0, 1, 1, 2, 2}, std::vector<int>{0, 1, 1, 1, 2, 0, 1},
                          std::vector<int>{0, 1, 2, 3}}) {
    const HostPlacement placement(key);
    for (int r = 0; r < placement.size(); ++r) {
      for (const int peer : placement.Peers(r)) {
        const std::vector<int> back = placement.Peers(peer);
        EXPECT_NE(std::find(back.begin(), back.end(), r), back.end()) << r << " and " << peer;
        EXPECT_NE(placement.HostOf(peer), placement.HostOf(r));
      }
      for (int host = 0; host < placement.hosts(); ++host) {
        if (host == placement.HostOf(r)) continue;
        const std::vector<int> served = placement.Served(placement.Partner(r, host));
        EXPECT_NE(std::find(served.begin(), served.end(), r), served.end());
      }
    }
  }
}

std::string HostsOf(Rank& rank) {
  const HostPlacement placement = FindHosts(*rank.store, "test", rank.rank, rank.size);
  Barrier(*rank.store, "done", rank.rank, rank.size);
  std::string text;
  for (int r = 0; r < rank.size; ++r) text += std::to_string(placement.HostOf(r));
  return text;
}

TEST(FindHostsTest, ProcessesAndThreadsOfThisMachineAreOneHost) {
  for (const RunRanks run : {&RunProcessRanks, &RunThreadRanks}) {
    for (const Outcome& outcome : run(3, HostsOf)) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_EQ(outcome.result, "000");
    }
  }
}

// The same boot, the same process numbers, and yet no memory in common.
TEST(FindHostsTest, WhatCannotBeReachedIsAnotherHost) {
  constexpr uid_t kNobody = 65534;  // May look at its own processes only.
  if (seteuid(kNobody) != 0 || seteuid(0) != 0) GTEST_SKIP() << "only root can be another user";
  const auto outcomes = RunProcessRanks(3, [](Rank& rank) -> std::string {
    if (rank.rank == 1) Require(seteuid(kNobody) == 0, "seteuid");
    const std::string hosts = HostsOf(rank);
    if (rank.rank == 1) Require(seteuid(0) == 0, "seteuid");
    return hosts;
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.result, "010");
  }
}

// One machine stands for several: no name is a name, too.
TEST(FindHostsTest, NamesMakeHosts) {
  for (const Outcome& outcome : RunProcessRanks(4, [](Rank& rank) {
         const char* const names[] = {"node a", "", "node a", "node b"};
         setenv("FSDP_TRAIN_HOST", names[rank.rank], 1);
         return HostsOf(rank);
       })) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.result, "0102");
  }
}

// Ranks 0 to 3 on a host, 4 on another one, which has the same cores.
TEST(RanksOnCoresTest, AreTheHostsThatMayRunThere) {
  const HostPlacement placement({0, 0, 0, 0, 1});
  const Cores cores[] = {{0, 1}, {2, 3}, {1, 2}, {6}, {0, 1}};
  const auto outcomes = RunThreadRanks(5, [&](Rank& rank) {
    const Cores& mine = cores[rank.rank];
    const int known = RanksOnCores(*rank.store, "all", rank.rank, placement, mine);
    const Cores some = rank.rank == 3 ? Cores() : mine;
    const int unknown = RanksOnCores(*rank.store, "some", rank.rank, placement, some);
    return std::to_string(known) + " " + std::to_string(unknown);
  });
  const char* const want[] = {"2 3", "2 3", "3 4", "1 4", "1 1"};
  for (size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_EQ(outcomes[r].error, "");
    EXPECT_EQ(outcomes[r].result, want[r]) << r;
  }
}

TEST(LocalAddressTest, IsTheOneTowardsTheMaster) {
  EXPECT_EQ(AddressTowards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(AddressOfInterface("lo"), "127.0.0.1");
  EXPECT_EQ(InterfaceOf("127.0.0.1"), "lo");
  EXPECT_EQ(InterfaceOf("203.0.113.9"), "?");  // For documentation: nobody has it.
  try {
    AddressOfInterface("wire7");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("FSDP_TRAIN_IFACE=wire7: no such network interface"), std::string::npos);
    EXPECT_NE(text.find("there are: "), std::string::npos);
    EXPECT_NE(text.find("lo"), std::string::npos);
  }
}

TEST(LocalAddressTest, ItsInterfaceIsTold) {
  EXPECT_EQ(InterfaceTowards("127.0.0.1"), "");
  EXPECT_EQ(InterfaceTowards("no.such.host.invalid"), "");
  setenv("FSDP_TRAIN_IFACE", "wire7", 1);
  EXPECT_EQ(InterfaceTowards("127.0.0.1"), "wire7");
  unsetenv("FSDP_TRAIN_IFACE");
  struct if_nameindex* const all = ::if_nameindex();
  for (const struct if_nameindex* i = all; i->if_index != 0; ++i) {
    if (std::string(i->if_name) == "lo") continue;
    try {
      EXPECT_EQ(InterfaceTowards(AddressOfInterface(i->if_name)), i->if_name);
    } catch (const ConfigError&) {  // It has no address.
    }
  }
  if_freenameindex(all);
}

}  // namespace
}  // namespace fsdp::testing
