// Who shares a GPU is found by what they have, whatever each rank sees of its host.
#include "trainer/loop/gpu_transport.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/store/memory_store.h"
#include "trainer/loop/choice.h"

namespace fsdp {
namespace {

using Words = std::vector<std::string>;

// This rank's place of a job of so many on two hosts, on a GPU with this uuid; empty: on the CPU.
ResolvedRun Rank(const Job* job, int rank, int world, const std::string& uuid,
                 const std::string& pci = "") {
  ResolvedRun run;
  run.hosts = HostPlacement::InOrder(world, (world + 1) / 2);
  run.place.job = job;
  run.place.rank = rank;
  run.place.world = world;
  ChosenDevice& device = run.place.device.emplace();
  device.sharers = 8;  // As one guesses who sees a single GPU.
  if (!uuid.empty()) {
    device.type = DeviceType::kCuda;
    device.uuid = uuid;
    device.pci = pci;
  }
  return run;
}

struct Found {
  int sharers = 0;
  bool asks = false;  // For NCCL.
};

// By rank, of ranks with these GPUs, at these places if any are named.
std::vector<Found> Find(const Words& uuids, const Words& places = {}) {
  const int world = static_cast<int>(uuids.size());
  const Job job;
  Words told;
  for (size_t r = 0; r < uuids.size(); ++r) {
    ResolvedRun run = Rank(&job, 0, world, uuids[r], places.empty() ? "" : places[r]);
    Choosing choosing{run};
    told.push_back(TransportChoice().Tell(choosing));
  }
  std::vector<Found> found;
  for (int r = 0; r < world; ++r) {
    ResolvedRun run = Rank(&job, r, world, uuids[static_cast<size_t>(r)]);
    Choosing choosing{run};
    choosing.told = told;
    choosing.mine = static_cast<size_t>(r);
    found.push_back({SharersOf(choosing), TransportChoice().Asks(choosing)});
  }
  return found;
}

TEST(GpuTransport, SharersHaveTheSameGpu) {
  const std::string a(16, 'a'), b(16, '\0');
  for (const Found& rank : Find({a, b})) {
    EXPECT_EQ(rank.sharers, 1);
    EXPECT_TRUE(rank.asks);
  }
  for (const Found& rank : Find({b, b})) {
    EXPECT_EQ(rank.sharers, 2);
    EXPECT_FALSE(rank.asks);
  }
  EXPECT_EQ(Find({a, b, a})[1].sharers, 1);
  EXPECT_FALSE(Find({a, b, a})[1].asks);
  EXPECT_EQ(Find({a})[0].sharers, 1);
  EXPECT_FALSE(Find({a})[0].asks);
  for (const Found& rank : Find({a, ""})) EXPECT_FALSE(rank.asks);
}

TEST(GpuTransport, MigInstancesOfAGpuAskNobody) {
  const std::string a(16, 'a'), b(16, 'b'), c(16, 'c'), d(16, 'd');
  const std::string gpu = "0000:18:00.0", other = "0000:2a:00.0";
  for (const Found& rank : Find({a, b, c, d}, {gpu, other, gpu, other})) EXPECT_TRUE(rank.asks);
  for (const Found& rank : Find({a, b, c, d}, {gpu, gpu, gpu, other})) {
    EXPECT_EQ(rank.sharers, 1);
    EXPECT_FALSE(rank.asks);
  }
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  for (const Found& rank : Find({a, a, c, c}, {gpu, gpu, gpu, gpu})) EXPECT_TRUE(rank.asks);
  for (const Found& rank : Find({a, b, c, c}, {gpu, gpu, gpu, gpu})) EXPECT_FALSE(rank.asks);
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST(GpuTransport, TwoOnAGpuMayAskWhereTheUserSaysSo) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const std::string a(16, 'a'), b(16, 'b');
  for (const Found& rank : Find({a, b, b, a})) {
    EXPECT_EQ(rank.sharers, 2);
    EXPECT_TRUE(rank.asks);
  }
  for (const Found& rank : Find({a, a, a})) {
    EXPECT_EQ(rank.sharers, 3);
    EXPECT_FALSE(rank.asks);
  }
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST(GpuTransport, SaysWhatCollectivesGoOver) {
  ResolvedRun run = Rank(nullptr, 0, 2, std::string(16, 'a'));
  Choosing choosing{run};
  const auto record = [&](const Words& told, const Words& answers) {
    choosing.told = told;
    choosing.answers = answers;
    return TransportChoice().Record(TransportChoice().Agree(choosing), choosing);
  };
  const Chosen shared = record({"aa", "aa"}, {"", ""});
  EXPECT_NE(shared.line.find("ranks share a GPU"), std::string::npos) << shared.line;
  EXPECT_EQ(shared.labels, (Labels{{"NCCL", "none"}}));
  EXPECT_EQ(run.sharers, 2);
  run.hosts = HostPlacement::InOrder(2, 2);
  const Chosen parts = record({"aa@0000:18:00.0", "bb@0000:18:00.0"}, {"", ""});
  EXPECT_NE(parts.line.find("MIG instances of one GPU"), std::string::npos) << parts.line;
  const Chosen nccl = record({"aa", "bb"}, {"2.28.9", "2.28.9"});
  EXPECT_EQ(nccl.line, "collectives over NCCL 2.28.9");
  EXPECT_EQ(nccl.value, "NCCL 2.28.9");
  EXPECT_EQ(nccl.labels, (Labels{{"NCCL", "2.28.9"}}));
  EXPECT_EQ(run.sharers, 1);
}

TEST(GpuTransport, RanksOnTheCpuShareNothing) {
  MemoryStore store(20);
  std::vector<ResolvedRun> runs(3);
  std::vector<std::thread> ranks;
  Job job;
  job.store = &store;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      ResolvedRun& run = runs[static_cast<size_t>(r)] = Rank(&job, r, 3, "");
      Choosing choosing{run};
      Make(TransportChoice(), choosing);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const ResolvedRun& run : runs) {
    EXPECT_EQ(run.sharers, 1);
    EXPECT_EQ(run.nccl, nullptr);
    EXPECT_EQ(run.Of(ChoiceId::kTransport).line, "");
    EXPECT_EQ(run.Of(ChoiceId::kTransport).labels, (Labels{{"NCCL", "none"}}));
  }
}

}  // namespace
}  // namespace fsdp
