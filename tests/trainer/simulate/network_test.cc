#include "trainer/simulate/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

// Rates and times that are powers of two: what follows is exact.
Hardware Cluster() {
  Hardware hardware;
  hardware.name = "a cluster";
  hardware.copy_bytes_per_s = 1024;
  hardware.network = NetworkRates{.ranks_per_host = 4,
                                  .collective_s = 1,
                                  .inside = {.ring_bytes_per_s = 64,
                                             .ring_step_s = 0.25,
                                             .all_to_all_bytes_per_s = 32,
                                             .all_to_all_step_s = 0.5,
                                             .ramp_bytes = 64},
                                  .between = {.ring_bytes_per_s = 16,
                                              .ring_step_s = 2,
                                              .all_to_all_bytes_per_s = 16,
                                              .all_to_all_step_s = 4,
                                              .ramp_bytes = 32}};
  return hardware;
}

RankGroup Ranks(int first, int count, int stride) {
  std::vector<int> ranks(count);
  for (int i = 0; i < count; ++i) ranks[i] = first + i * stride;
  return RankGroup(ranks, first);
}

SimWork Work(const RankGroup& group, Collective kind, int64_t n, int world = 16,
             int ranks_per_host = 4, const SumsOfGpus& sums = {}, DType dtype = DType::kFloat32) {
  const Hardware hardware = Cluster();
  const Network network(hardware, world, ranks_per_host, sums);
  CollectiveCall call;
  call.dtype = dtype;
  call.kind = kind;
  call.n = n;  // Elements of four bytes.
  return network.WorkOf(network.ReachOf(group), call);
}

TEST(NetworkTest, ARingInsideAHost) {
  const RankGroup host = Ranks(4, 4, 1);
  // 3 steps; 3/4 of 4 x 64 x 4 bytes, and the ramp.
  const double ring = 3 * 0.25 + (768.0 + 64) / 64;
  EXPECT_EQ(Work(host, Collective::kAllGather, 64).seconds, 1 + ring);
  EXPECT_EQ(Work(host, Collective::kReduceScatter, 64).seconds, 1 + ring);
  EXPECT_EQ(Work(host, Collective::kAllGather, 64).resource, SimResource::kInside);
  EXPECT_EQ(Work(host, Collective::kAllReduce, 256).seconds, 1 + 2 * ring);
}

TEST(NetworkTest, ARingBetweenHostsHasTheRateOfTheSlowerLinks) {
  const RankGroup world = Ranks(0, 16, 1);
  // 12 steps inside hosts and 3 between them; all of a host's links at 16 bytes a second.
  const SimWork work = Work(world, Collective::kAllGather, 64);
  EXPECT_EQ(work.seconds, 1 + 12 * 0.25 + 3 * 2 + (64.0 * 4 * 15 + 32) / 16);
  EXPECT_EQ(work.resource, SimResource::kBetween);
  // One rank of each host: a quarter of its links, for the other ranks' groups have the rest.
  EXPECT_EQ(Work(Ranks(1, 4, 4), Collective::kAllGather, 64).seconds,
            1 + 3 * 2 + (64.0 * 4 * 3 + 32) / 4);
}

TEST(NetworkTest, FewBytesGoOverATree) {
  const RankGroup world = Ranks(0, 16, 1);
  // Up and down: 3 steps in a host, 2 levels of hosts.
  EXPECT_EQ(Work(world, Collective::kAllReduce, 1).seconds,
            1 + 2 * (3 * 0.25 + 2 * 2 + (4.0 + 32) / 16));
}

TEST(NetworkTest, AnExchangeIsAsLongAsItsSlowerPart) {
  // Inside a host: 3 peers, 64 x 4 bytes for each.
  EXPECT_EQ(Work(Ranks(0, 4, 1), Collective::kAllToAll, 64).seconds,
            1 + 3 * 0.5 + (256.0 * 3 + 64) / 32);
  // 12 peers on other hosts, over a quarter of the host's links.
  EXPECT_EQ(Work(Ranks(0, 16, 1), Collective::kAllToAll, 64).seconds,
            1 + 3 * 0.5 + 12 * 4 + (256.0 * 12 + 32) / 4);
}

// By a kernel of ours, which reads what an exchange has brought and writes the sum.
TEST(NetworkTest, OwnSumsAreExchanges) {
  const auto seconds = [](Collective kind, int64_t n, const SumsOfGpus& sums, DType dtype) {
    return Work(Ranks(0, 16, 1), kind, n, 16, 4, sums, dtype).seconds;
  };
  constexpr Collective kReduce = Collective::kReduceScatter, kAll = Collective::kAllReduce;
  const SumsOfGpus nccl, exact{.exact_into_fp32 = true}, all{.deterministic = true};
  const double exchange = seconds(Collective::kAllToAll, 64, nccl, DType::kBFloat16);
  const double ring = seconds(Collective::kAllGather, 64, nccl, DType::kBFloat16);
  const double copy = 1024;  // A second.
  EXPECT_EQ(seconds(kReduce, 64, exact, DType::kBFloat16),
            exchange + (64 * 16 * 2 + 64 * 4) / copy);
  EXPECT_EQ(seconds(kReduce, 64, all, DType::kBFloat16), exchange + (64 * 16 * 2 + 64 * 4) / copy);
  EXPECT_EQ(seconds(kReduce, 64, nccl, DType::kBFloat16), ring + (64 * 2 + 64 * 4) / copy);
  EXPECT_EQ(seconds(kReduce, 64, nccl, DType::kFloat16),
            ring + (2 * 64 * 16 * 2 + 64 * 2 + 64 * 4) / copy);
  EXPECT_EQ(seconds(kReduce, 64, exact, DType::kFloat32),
            seconds(Collective::kAllGather, 64, nccl, DType::kFloat32));
  // An exchange, and an all-gather of what each rank has summed.
  constexpr int64_t kMany = 1 << 20;
  EXPECT_EQ(seconds(kAll, kMany, all, DType::kFloat32),
            seconds(Collective::kAllToAll, kMany / 16, nccl, DType::kFloat32) +
                seconds(Collective::kAllGather, kMany / 16, nccl, DType::kFloat32) - 1 +
                (4.0 * kMany + kMany / 4) / copy);
  EXPECT_EQ(
      seconds(kAll, 64, all, DType::kFloat32),
      seconds(Collective::kAllGather, 64, nccl, DType::kFloat32) + (64 * 16 * 4 + 64 * 4) / copy);
}

TEST(NetworkTest, ARankAloneTakesNoTime) {
  EXPECT_EQ(Work(Ranks(3, 1, 1), Collective::kAllReduce, 64).seconds, 0);
  EXPECT_NO_THROW(Network(Hardware(), /*world=*/1, /*ranks_per_host=*/1));
}

TEST(NetworkTest, OnACpuACoreCopies) {
  Hardware hardware = Cluster();
  hardware.device = Hardware::Device::kCpu;
  hardware.cores = 8;
  const Network network(hardware, 4, 4);
  CollectiveCall call;
  call.n = 1;
  const SimWork work = network.WorkOf(network.ReachOf(Ranks(0, 4, 1)), call);
  EXPECT_EQ(work.resource, SimResource::kKernels);
  EXPECT_EQ(work.share, 0.5);  // Two of the eight are each rank's.
}

std::string MistakeOf(const Hardware& hardware, const RankGroup& group, Collective kind) {
  try {
    const Network network(hardware, 16, 4);
    CollectiveCall call;
    call.kind = kind;
    call.n = 1;
    network.WorkOf(network.ReachOf(group), call);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(NetworkTest, WhatTheFileLacksIsNamed) {
  using ::testing::HasSubstr;
  Hardware hardware = Cluster();
  hardware.network->between.ring_step_s.reset();
  hardware.network->inside.all_to_all_bytes_per_s.reset();
  EXPECT_EQ(MistakeOf(hardware, Ranks(0, 4, 1), Collective::kAllGather), "none");
  EXPECT_THAT(MistakeOf(hardware, Ranks(0, 16, 1), Collective::kAllGather),
              HasSubstr("has no network.between.ring_step_s"));
  EXPECT_THAT(MistakeOf(hardware, Ranks(0, 4, 1), Collective::kAllToAll),
              HasSubstr("has no network.inside.all_to_all_bytes_per_s"));
  hardware.network.reset();
  EXPECT_THAT(MistakeOf(hardware, Ranks(0, 4, 1), Collective::kAllGather),
              HasSubstr("has no network, and the job has 16 ranks"));
}

}  // namespace
}  // namespace fsdp
