// Who shares a GPU is found by what they have, whatever each rank sees of its host.
#include "trainer/loop/gpu_transport.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/memory_store.h"

namespace fsdp {
namespace {

struct Found {
  int sharers = 0;
  GpuTransport transport;
};

// Ranks with these GPUs' uuids; empty: on the CPU.
std::vector<Found> Find(const std::vector<std::string>& uuids) {
  MemoryStore store(20);
  std::vector<Found> found(uuids.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < uuids.size(); ++r) {
    ranks.emplace_back([&, r] {
      Job job;
      job.rank = static_cast<int>(r);
      job.world = job.local_world = static_cast<int>(uuids.size());
      job.store = &store;
      job.device.sharers = 8;  // As one guesses who sees a single GPU.
      if (!uuids[r].empty()) {
        job.device.type = DeviceType::kCuda;
        job.device.uuid = uuids[r];
      }
      const std::vector<std::string> gpus = ExchangeGpus(job);
      found[r].sharers = SharersOf(gpus, job);
      if (found[r].sharers > 1 || uuids[r].empty()) {
        found[r].transport = FindGpuTransport(gpus, job);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return found;
}

TEST(GpuTransport, SharersHaveTheSameGpu) {
  const std::string a(16, 'a'), b(16, '\0');
  for (const Found& rank : Find({a, b})) EXPECT_EQ(rank.sharers, 1);
  for (const Found& rank : Find({b, b})) {
    EXPECT_EQ(rank.sharers, 2);
    EXPECT_EQ(rank.transport.nccl, nullptr);
    EXPECT_NE(rank.transport.note.find("ranks share a GPU"), std::string::npos);
  }
  EXPECT_EQ(Find({a})[0].sharers, 1);
}

TEST(GpuTransport, RanksOnTheCpuShareNothing) {
  for (const Found& rank : Find({"", "", ""})) {
    EXPECT_EQ(rank.sharers, 1);
    EXPECT_EQ(rank.transport.note, "");
  }
}

}  // namespace
}  // namespace fsdp
