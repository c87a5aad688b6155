#include "trainer/comm/nccl/communicator_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace fsdp {
namespace {

using Sizes = std::vector<Communicator::Size>;

const Sizes kGathers = {{Collective::kAllGather, DType::kBFloat16, DType::kBFloat16, 100}};
const Sizes kSums = {{Collective::kReduceScatter, DType::kBFloat16, DType::kFloat32, 100},
                     {Collective::kAllReduce, DType::kFloat32, DType::kFloat32, 8}};
constexpr NcclOptions kByNccl = {};
constexpr NcclOptions kExact = {.exact_into_fp32 = true};
constexpr NcclOptions kOurs = {.deterministic = true};

TEST(CommunicatorMemory, OnlyOurSumsHaveStaging) {
  for (const NcclOptions& options : {kByNccl, kExact, kOurs}) {
    EXPECT_EQ(NcclStaging(options, kGathers), 0);
    EXPECT_EQ(NcclStaging(options, {}), 0);
  }
  EXPECT_EQ(NcclStaging(kByNccl, kSums), 0);
  EXPECT_EQ(NcclStaging(kExact, kSums), kNcclStagingBytes);
  EXPECT_EQ(NcclStaging(kOurs, kSums), kNcclStagingBytes);
  // NCCL sums what is fp32 already, unless all sums are ours.
  const Sizes fp32 = {{Collective::kReduceScatter, DType::kFloat32, DType::kFloat32, 100}};
  EXPECT_EQ(NcclStaging(kExact, fp32), 0);
  EXPECT_EQ(NcclStaging(kOurs, fp32), kNcclStagingBytes);
}

// A connection has 9,633,792 bytes.
TEST(CommunicatorMemory, BuffersFollowFromKindsAndPlaces) {
  constexpr int64_t kConnection = 9'633'792, kNvls = int64_t{256} << 20;
  EXPECT_EQ(NcclBuffers(kByNccl, {}, 8, 8), 0);
  EXPECT_EQ(NcclBuffers(kByNccl, kGathers, 2, 2), 32 * kConnection);
  EXPECT_EQ(NcclBuffers(kByNccl, kGathers, 8, 8), 32 * kConnection + kNvls);
  EXPECT_EQ(NcclBuffers(kByNccl, kGathers, 16, 1), 32 * kConnection);
  EXPECT_EQ(NcclBuffers(kByNccl, kSums, 8, 8), 96 * kConnection + kNvls);
  // Slices for each peer, and NCCL's all-reduce of the scalars.
  EXPECT_EQ(NcclBuffers(kExact, kSums, 8, 8), (96 + 7 * 32) * kConnection + kNvls);
  // All-gathers end the all-reduces that are ours.
  EXPECT_EQ(NcclBuffers(kOurs, kSums, 8, 8), (32 + 7 * 32) * kConnection + kNvls);
  EXPECT_EQ(NcclBuffers(kOurs, kSums, 16, 8), (32 + 7 * 2 + 32) * kConnection + kNvls);
  const Sizes exchange = {{Collective::kAllToAll, DType::kFloat32, DType::kFloat32, 0}};
  EXPECT_EQ(NcclBuffers(kByNccl, exchange, 8, 8), 7 * 32 * kConnection);
}

// A channel is a block's, and peers' channels are a power of two.
TEST(CommunicatorMemory, FewerBlocksHaveFewerConnections) {
  constexpr int64_t kConnection = 9'633'792, kNvls = int64_t{256} << 20;
  constexpr NcclOptions kSix = {.exact_into_fp32 = true, .max_blocks = 6};
  EXPECT_EQ(NcclBuffers(kSix, kGathers, 2, 2), 6 * kConnection);
  EXPECT_EQ(NcclBuffers(kSix, kSums, 8, 8), (18 + 7 * 8) * kConnection + kNvls);
  EXPECT_EQ(NcclBuffers(kSix, kSums, 16, 8), (18 + 7 * 2 + 8) * kConnection + kNvls);
  EXPECT_EQ(NcclBuffers({.max_blocks = 64}, kGathers, 2, 2), 32 * kConnection);
}

}  // namespace
}  // namespace fsdp
