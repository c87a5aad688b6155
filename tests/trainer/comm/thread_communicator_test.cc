#include "trainer/comm/thread/thread_communicator.h"

#include <chrono>
#include <thread>

#include "tests/trainer/comm/communicator_suite.h"

namespace fsdp::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorSuite,
                         ::testing::ValuesIn(SuiteCases(RunThreadRanks)), SuiteCaseName);

// Between the first meeting and the last, peers read this rank's tensor: an abort must not let it
// go before they have done so. Under AddressSanitizer a rank that goes too early is a use after
// unmapping.
TEST(ThreadCommunicatorTest, AnAbortNeverFreesWhatAPeerStillReads) {
  // malloc keeps what is smaller than 32 MiB mapped when it is freed, and who reads it does not
  // crash. Copies take milliseconds, so an abort comes in one of them.
  constexpr int64_t kShard = 5'000'000;
  for (int round = 0; round < 30; ++round) {
    auto group = CreateThreadCommunicators(2, Patient());
    std::vector<std::thread> ranks;
    for (int r = 0; r < 2; ++r) {
      ranks.emplace_back([&, r] {
        CpuDevice device;
        const auto stream = device.CreateStream("comm");
        Tensor full(device, DType::kFloat32, 2 * kShard);
        try {
          for (int i = 0; i < 100; ++i) {
            group[r]->AllGather(*stream, full.Slice(r * kShard, kShard), full.view());
            stream->Synchronize();
          }
        } catch (const CommError&) {
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + round));
    group[round % 2]->Abort("now");
    for (std::thread& rank : ranks) rank.join();
  }
}

TEST(ThreadCommunicatorTest, RefusesImpossibleSizes) {
  EXPECT_THROW(CreateThreadCommunicators(0), std::invalid_argument);
  EXPECT_THROW(CreateThreadCommunicators(1024), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp::testing
