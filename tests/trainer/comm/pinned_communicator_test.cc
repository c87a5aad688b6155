// Ranks on CUDA devices of an emulated machine, over the transports of the CPU's memory.
#include "trainer/comm/pinned_communicator.h"

#include <memory>

#include "tests/trainer/comm/communicator_suite.h"
#include "trainer/runtime/cuda/cuda_device.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp::testing {
namespace {

std::unique_ptr<Device> MakeCuda() { return CreateCudaDevice({}); }

Body Pinned(const Body& body, int64_t staging_bytes = kPinnedStagingBytes) {
  const auto wrap = [staging_bytes](std::unique_ptr<Communicator> over, Device& device) {
    return MakePinnedCommunicator(std::move(over), device, staging_bytes);
  };
  return OnDevice(MakeCuda, wrap, body);
}

std::vector<Outcome> RunPinnedThreads(int size, const Body& body) {
  return RunThreadRanks(size, Pinned(body));
}
std::vector<Outcome> RunPinnedProcesses(int size, const Body& body) {
  return RunProcessRanks(size, Pinned(body));
}

std::vector<SuiteCase> Cases(RunRanks run) { return {{run, 1}, {run, 2}, {run, 3}}; }

// Processes first: they fork while no thread runs.
INSTANTIATE_TEST_SUITE_P(AProcesses, CommunicatorSuite,
                         ::testing::ValuesIn(Cases(RunPinnedProcesses)), SuiteCaseName);
INSTANTIATE_TEST_SUITE_P(BThreads, CommunicatorSuite, ::testing::ValuesIn(Cases(RunPinnedThreads)),
                         SuiteCaseName);

// However small the pieces are, and whatever is left for the last.
TEST(PinnedCommunicatorTest, PiecesGiveTheBitsOfTheCpu) {
  for (const int size : {1, 2, 3}) {
    const auto cpu = RunThreadRanks(size, MixedCollectives);
    for (const int64_t bytes : {int64_t{40'000}, int64_t{100'003}, kPinnedStagingBytes}) {
      const auto cuda = RunThreadRanks(size, Pinned(MixedCollectives, bytes));
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(cuda[r].error, "");
        EXPECT_NE(cuda[r].result, "");
        EXPECT_EQ(cuda[r].result, cpu[r].result) << "rank " << r << " of " << size << ", " << bytes;
      }
    }
  }
}

// Into fp32, where a piece has tensors of two dtypes; in place, where a piece must not write what
// the next one reads.
TEST(PinnedCommunicatorTest, PiecesOfEveryKindOfReduceScatter) {
  const auto outcomes = RunThreadRanks(
      3, Pinned(
             [](Rank& rank) -> std::string {
               Device& device = *rank.device;
               const auto stream = device.CreateStream("comm");
               const auto comm = rank.join("reduce_scatter", Patient());
               constexpr int64_t n = 1003;
               const auto sum = [&](int64_t i) {
                 return SumOfValues(rank.size, rank.rank * n + i);
               };
               Tensor full(device, DType::kBFloat16, n * rank.size);
               Tensor shard(device, DType::kFloat32, n);
               full.Fill([&](int64_t i) { return Value(rank.rank, i); });
               comm->ReduceScatter(*stream, full.view(), shard.view());
               comm->ReduceScatter(*stream, full.view(), full.Slice(rank.rank * n, n));
               stream->Synchronize();
               shard.RequireEqual(sum, "into fp32");
               full.RequireEqual(
                   [&](int64_t i) { return i / n == rank.rank ? sum(i % n) : Value(rank.rank, i); },
                   "in place");
               return "";
             },
             /*staging_bytes=*/333));
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

// The staging memory is used again and again, and events order that as any other use.
TEST(PinnedCommunicatorTest, CheckerSeesNoRace) {
  int races = 0;
  const auto checker =
      std::make_shared<StreamChecker>([&](const StreamChecker::Race&) { ++races; });
  const auto make = [&] { return CreateCudaDevice({.checker = checker}); };
  const auto wrap = [](std::unique_ptr<Communicator> over, Device& device) {
    return MakePinnedCommunicator(std::move(over), device, 1000);
  };
  const auto outcomes = RunThreadRanks(1, OnDevice(make, wrap, [](Rank& rank) -> std::string {
                                         const auto stream = rank.device->CreateStream("comm");
                                         const auto comm = rank.join("checked", Patient());
                                         Tensor full(*rank.device, DType::kFloat32, 4000),
                                             shard(*rank.device, DType::kFloat32, 4000);
                                         comm->ReduceScatter(*stream, full.view(), shard.view());
                                         comm->AllGather(*stream, shard.view(), full.view());
                                         stream->Synchronize();
                                         return "";
                                       }));
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_EQ(races, 0);
}

}  // namespace
}  // namespace fsdp::testing
