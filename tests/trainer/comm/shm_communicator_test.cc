#include "trainer/comm/shm/shm_communicator.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "tests/trainer/comm/communicator_suite.h"

namespace fsdp::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(OfOneHost, CommunicatorSuite,
                         ::testing::ValuesIn(SuiteCases(RunProcessRanks)), SuiteCaseName);

TEST(ShmCommunicatorTest, GivesTheBitsOfThreads) {
  for (const int size : {2, 3, 4}) {
    const auto processes = RunProcessRanks(size, MixedCollectives);
    const auto threads = RunThreadRanks(size, MixedCollectives);
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(processes[r].error, "");
      EXPECT_NE(processes[r].result, "");
      EXPECT_EQ(processes[r].result, threads[r].result) << "rank " << r << " of " << size;
    }
  }
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Rank 1 is killed while the others wait for it, or between two collectives. The store's server is
// told nothing in time: the survivors must find out by themselves.
class DeathTest : public ::testing::TestWithParam<int> {};

TEST_P(DeathTest, SurvivorsOfAKilledRankFailWellWithinTheTimeout) {
  const int size = GetParam();
  const auto outcomes = RunProcessRanks(size, [](Rank& rank) -> std::string {
    CpuDevice device;
    const auto stream = device.CreateStream("comm");
    CommOptions options;
    options.timeout_s = 20;
    const auto comm = rank.join("death", options);
    Tensor data(device, DType::kFloat32, 100003);
    comm->AllReduce(*stream, data.view());
    stream->Synchronize();
    if (rank.rank == 1) raise(SIGKILL);
    const double begin = Now();
    comm->AllReduce(*stream, data.view());
    const std::string error = CommErrorOf(*stream);
    Require(Now() - begin < options.timeout_s, "took the whole timeout");
    RequireContains(error, "rank 1 died (process ");
    RequireContains(error, "in all_reduce #1 (n = 100003, fp32)");
    return "failed as it should";
  });
  for (int r = 0; r < size; ++r) {
    if (r == 1) {
      EXPECT_EQ(outcomes[r].error, "signal " + std::to_string(SIGKILL));
    } else {
      EXPECT_EQ(outcomes[r].error, "") << "rank " << r;
      EXPECT_EQ(outcomes[r].result, "failed as it should") << "rank " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeathTest, ::testing::Values(2, 3, 8));

// In the mapping table: what the plan counts as `outside` is what there is.
TEST(ShmCommunicatorTest, MapsShmBytesAndUnmapsThem) {
  const auto outcomes = RunProcessRanks(3, [](Rank& rank) -> std::string {
    const auto mapped = [] {
      int64_t bytes = 0;
      std::ifstream maps("/proc/self/maps");
      for (std::string line; std::getline(maps, line);) {
        if (line.find("/memfd:fsdp-train") == std::string::npos) continue;
        const size_t dash = line.find('-');
        bytes += static_cast<int64_t>(std::stoull(line.substr(dash + 1), nullptr, 16) -
                                      std::stoull(line.substr(0, dash), nullptr, 16));
      }
      return bytes;
    };
    {
      const auto comm = rank.join("maps", Patient());
      Require(mapped() == ShmBytes(3), "mapped " + std::to_string(mapped()));
    }
    Require(mapped() == 0, "left " + std::to_string(mapped()));
    Barrier(*rank.store, "done", rank.rank, rank.size);
    return "";
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

TEST(ShmCommunicatorTest, MemoryThatCannotBeHadIsADeviceErrorOnEveryRank) {
  const auto outcomes = RunProcessRanks(3, [](Rank& rank) -> std::string {
    if (rank.rank == 0) {  // Also the largest size of a memfd.
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{1 << 20, 1 << 20};
      Require(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    }
    std::string error;
    try {
      rank.join("limit", Patient());
    } catch (const DeviceError& e) {
      error = e.what();
    }
    RequireContains(error, "cannot get " + std::to_string(ShmBytes(3)) + " bytes of shared memory");
    Barrier(*rank.store, "done", rank.rank, rank.size);
    return "";
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

TEST(ShmCommunicatorTest, ARankThatDiesBeforeItJoinsFailsTheOthers) {
  const auto outcomes = RunProcessRanks(3, [](Rank& rank) -> std::string {
    if (rank.rank == 2) raise(SIGKILL);
    std::string error;
    try {
      rank.join("never", Patient());
    } catch (const CommError& e) {
      error = e.what();
    }
    Require(error == "rank 2 disconnected from the store", error);
    return "";
  });
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_EQ(outcomes[1].error, "");
}

}  // namespace
}  // namespace fsdp::testing
