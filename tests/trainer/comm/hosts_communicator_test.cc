#include "trainer/comm/hosts/hosts_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "tests/trainer/comm/communicator_suite.h"
#include "trainer/comm/traffic.h"

namespace fsdp::testing {
namespace {

// Rank r is of host layout[r]; hosts meet on the loopback device.
Join OnHosts(const std::vector<int>& layout) {
  return [layout](Store& store, const std::string& name, const RankGroup& group,
                  const CommOptions& options) {
    return CreateHostsCommunicator(store, name, group, HostPlacement(layout), "127.0.0.1", options);
  };
}
template <int... kLayout>
std::vector<Outcome> InThreads(int size, const Body& body) {
  return RunThreadRanksWith(OnHosts({kLayout...}), size, body);
}
template <int... kLayout>
std::vector<Outcome> InProcesses(int size, const Body& body) {
  return RunProcessRanksWith(OnHosts({kLayout...}), size, body);
}

std::string NameOf(const ::testing::TestParamInfo<SuiteCase>& info) {
  const RunRanks run = info.param.run;
  if (run == InThreads<0, 1> || run == InProcesses<0, 1, 2>) return "OneOfEach";
  if (run == InThreads<0, 0, 1, 1>) return "Hosts2x2";
  if (run == InThreads<0, 1, 1, 1>) return "Hosts1And3";
  if (run == InThreads<0, 1, 0, 2, 1>) return "Scattered";
  return "Hosts3x2";
}

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorSuite,
                         ::testing::Values(SuiteCase{InThreads<0, 1>, 2},
                                           SuiteCase{InThreads<0, 0, 1, 1>, 4},
                                           SuiteCase{InThreads<0, 1, 1, 1>, 4},
                                           SuiteCase{InThreads<0, 1, 0, 2, 1>, 5}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Processes, CommunicatorSuite,
                         ::testing::Values(SuiteCase{InProcesses<0, 1, 2>, 3},
                                           SuiteCase{InProcesses<0, 0, 1, 1, 2, 2>, 6}),
                         NameOf);

TEST(HostsCommunicatorTest, GivesTheBitsOfThreads) {
  const auto want = RunThreadRanks(4, MixedCollectives);
  for (const auto& layout : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 0, 2}}) {
    const auto hosts = RunThreadRanksWith(OnHosts(layout), 4, MixedCollectives);
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(hosts[r].error, "");
      EXPECT_NE(hosts[r].result, "");
      EXPECT_EQ(hosts[r].result, want[r].result) << "rank " << r;
    }
  }
}

// A gathered shard crosses once to each other host, whoever reads it there; a slice for a rank of
// another host once; nothing that stays on a host.
TEST(HostsCommunicatorTest, CountsWhatCrossesTheNetwork) {
  for (const auto& layout : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 0, 2, 1}}) {
    const int hosts = *std::max_element(layout.begin(), layout.end()) + 1;
    const auto outcomes = RunThreadRanksWith(
        OnHosts(layout), static_cast<int>(layout.size()), [&](Rank& rank) -> std::string {
          CpuDevice device;
          const auto stream = device.CreateStream("comm");
          const auto comm = rank.join("network", Patient());
          Traffic traffic;
          comm->CountIn(&traffic);
          constexpr int64_t n = 50001;
          Tensor full(device, DType::kBFloat16, n * rank.size), shard(device, DType::kBFloat16, n);
          Tensor other(device, DType::kBFloat16, n * rank.size);
          full.FillPeriodic([&](int64_t i) { return Value(rank.rank, i); });
          shard.FillPeriodic([&](int64_t i) { return Value(rank.rank, i); });
          const auto slice = [&](int r) { return n * (r + 1) / rank.size - n * r / rank.size; };
          int64_t far = 0, far_slices = 0;  // Ranks elsewhere, and their slices of an all-reduce.
          for (int r = 0; r < rank.size; ++r) {
            if (layout[r] == layout[rank.rank]) continue;
            far += 1;
            far_slices += slice(r);
          }
          const int64_t want[kCollectives] = {(hosts - 1) * n, far * n,
                                              far_slices + (hosts - 1) * slice(rank.rank), far * n,
                                              rank.rank == rank.size - 1 ? (hosts - 1) * n : 0};
          for (int k = 0; k < kCollectives; ++k) {
            traffic.Clear();
            Issue(*comm, *stream, static_cast<Collective>(k), full.view(), shard.view(),
                  other.view());
            stream->Synchronize();
            const int64_t got = traffic.Read().network;
            Require(got == 2 * want[k], std::string(Name(static_cast<Collective>(k))) + " sent " +
                                            std::to_string(got) + " bytes, want " +
                                            std::to_string(2 * want[k]));
          }
          return "";
        });
    for (const auto& outcome : outcomes) EXPECT_EQ(outcome.error, "");
  }
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A rank is killed while the others wait for it. No store is asked: the survivors find out by
// themselves. The hosts are {0, 1} and {2, 3}.
class HostDeathTest : public ::testing::TestWithParam<int> {};

TEST_P(HostDeathTest, SurvivorsOfAKilledRankFailWellWithinTheTimeout) {
  const int victim = GetParam();
  const auto outcomes =
      RunProcessRanksWith(OnHosts({0, 0, 1, 1}), 4, [victim](Rank& rank) -> std::string {
        CpuDevice device;
        const auto stream = device.CreateStream("comm");
        CommOptions options;
        options.timeout_s = 20;
        const auto comm = rank.join("death", options);
        Tensor data(device, DType::kFloat32, 100003);
        comm->AllReduce(*stream, data.view());
        stream->Synchronize();
        // The victim waits for the others to be through with the first one, they for nobody.
        if (rank.rank == victim) {
          std::vector<std::string> others;
          for (int r = 0; r < rank.size; ++r) {
            if (r != victim) others.push_back("through " + std::to_string(r));
          }
          rank.store->Wait(others);
          raise(SIGKILL);
        }
        try {
          rank.store->Set("through " + std::to_string(rank.rank), "");
        } catch (const CommError&) {  // Dead before the answer has come.
        }
        const double begin = Now();
        comm->AllReduce(*stream, data.view());
        const std::string error = CommErrorOf(*stream);
        Require(Now() - begin < options.timeout_s / 2, "took long: " + error);
        RequireContains(error, "rank " + std::to_string(victim));
        return error;
      });
  for (int r = 0; r < 4; ++r) {
    if (r == victim) {
      EXPECT_EQ(outcomes[r].error, "signal " + std::to_string(SIGKILL));
    } else {
      EXPECT_EQ(outcomes[r].error, "") << "rank " << r;
      EXPECT_NE(outcomes[r].result, "") << "rank " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, HostDeathTest, ::testing::Values(0, 1, 2, 3));

// A host that stops for good while its connections stay: only the timeout tells.
TEST(HostsCommunicatorTest, NamesAHostThatDoesNotAnswer) {
  const auto outcomes = RunProcessRanksWith(OnHosts({0, 0, 1}), 3, [](Rank& rank) -> std::string {
    CpuDevice device;
    const auto stream = device.CreateStream("comm");
    CommOptions options;
    options.timeout_s = 2;
    const auto comm = rank.join("silent", options);
    Tensor data(device, DType::kFloat32, 7);
    rank.store->Set("pid " + std::to_string(rank.rank), std::to_string(getpid()));
    comm->AllReduce(*stream, data.view());
    stream->Synchronize();
    if (rank.rank == 2) raise(SIGSTOP);  // Until rank 0 ends it.
    comm->AllReduce(*stream, data.view());
    const std::string error = CommErrorOf(*stream);
    if (rank.rank == 0) kill(std::stoi(rank.store->Get("pid 2")), SIGKILL);
    RequireContains(error,
                    "all_reduce #1 (n = 7, fp32) timed out after 2 s: rank 2 of host "
                    "127.0.0.1 do not answer");
    return error;
  });
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_EQ(outcomes[1].error, "");
}

}  // namespace
}  // namespace fsdp::testing
