// Rules of NCCL's documentation: which calls are taken and which refused, as far as one rank can
// ask. The emulator's NCCL, which the other tests believe, is held to them, and on a GPU the real
// one.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

// A member of the tests below: the library's function of that name.
#define FUNCTION(name) Function<decltype(name)>(#name)

constexpr size_t kCount = 12, kBytes = kCount * 8;  // Elements of any type.

class NcclRulesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no GPU";
    library_ = FindGpuLibrary(GpuLibrary::kNccl, GpuLibraryPlaces());
    if (!library_.function) GTEST_SKIP() << library_.why_not;
    ASSERT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0), cudaSuccess);
    for (void** memory : {&sent_, &received_}) {
      ASSERT_EQ(cudaMalloc(memory, kBytes), cudaSuccess);
    }
    for (size_t i = 0; i < kBytes; ++i) values_.push_back(static_cast<uint8_t>(i % 0x37 + 3));
    Put(sent_, values_);
    Put(received_, std::vector<uint8_t>(kBytes, 0xEE));
  }
  void TearDown() override {
    if (comm_ != nullptr) {
      EXPECT_EQ(FUNCTION(ncclCommAbort)(comm_), ncclSuccess);
    }
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (void* memory : {sent_, received_}) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  template <typename Type>
  Type* Function(const char* name) const {
    auto* const function = reinterpret_cast<Type*>(library_.function(name));
    if (function == nullptr) throw std::runtime_error(library_.path + " has no " + name);
    return function;
  }

  void Put(void* to, const std::vector<uint8_t>& bytes) {
    EXPECT_EQ(cudaMemcpyAsync(to, bytes.data(), kBytes, cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  std::vector<uint8_t> Get(const void* from) {
    std::vector<uint8_t> bytes(kBytes);
    EXPECT_EQ(cudaMemcpyAsync(bytes.data(), from, kBytes, cudaMemcpyDeviceToHost, stream_),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return bytes;
  }

  // "Will return ncclInProgress": of a communicator that does not block.
  static ncclConfig_t Config() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
  }
  ncclResult_t Init(int size, int rank, ncclConfig_t config = Config()) {
    ncclUniqueId id;
    EXPECT_EQ(FUNCTION(ncclGetUniqueId)(&id), ncclSuccess);
    return FUNCTION(ncclCommInitRankConfig)(&comm_, size, id, rank, &config);
  }
  // The result at the end of a call that may be in progress.
  ncclResult_t End(ncclResult_t result) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (result == ncclInProgress) {
      EXPECT_EQ(FUNCTION(ncclCommGetAsyncError)(comm_, &result), ncclSuccess);
      if (std::chrono::steady_clock::now() > late) throw std::runtime_error("it does not end");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return result;
  }
  void Open() { ASSERT_EQ(End(Init(1, 0)), ncclSuccess); }

  FoundGpuLibrary library_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  void *sent_ = nullptr, *received_ = nullptr;
  std::vector<uint8_t> values_;
};

TEST_F(NcclRulesTest, ARankIsOneOfThem) {
  for (const auto& [size, rank] : {std::pair(1, 1), {2, 5}, {1, -1}, {0, 0}}) {
    EXPECT_EQ(Init(size, rank), ncclInvalidArgument) << rank << " of " << size;
    EXPECT_EQ(comm_, nullptr);
  }
}

TEST_F(NcclRulesTest, AConfigBeginsWithItsInitializer) {
  ncclConfig_t config = Config();
  config.magic = 0;
  EXPECT_EQ(Init(1, 0, config), ncclInvalidArgument);
  EXPECT_EQ(comm_, nullptr);
}

// Sums of one are what is summed.
TEST_F(NcclRulesTest, CollectivesOfOneRankAreCopies) {
  Open();
  for (const ncclDataType_t type : {ncclUint8, ncclFloat16, ncclBfloat16, ncclFloat32}) {
    const size_t size = type == ncclUint8 ? 1 : type == ncclFloat32 ? 4 : 2;
    std::vector<uint8_t> want(kBytes, 0xEE);
    std::copy_n(values_.begin(), kCount * size, want.begin());
    const auto copies = [&](const char* name, const auto& call) {
      Put(received_, std::vector<uint8_t>(kBytes, 0xEE));
      EXPECT_EQ(End(call()), ncclSuccess) << name << " of type " << type;
      EXPECT_EQ(Get(received_), want) << name << " of type " << type;
    };
    copies("all-gather",
           [&] { return FUNCTION(ncclAllGather)(sent_, received_, kCount, type, comm_, stream_); });
    copies("reduce-scatter", [&] {
      return FUNCTION(ncclReduceScatter)(sent_, received_, kCount, type, ncclSum, comm_, stream_);
    });
    copies("all-reduce", [&] {
      return FUNCTION(ncclAllReduce)(sent_, received_, kCount, type, ncclSum, comm_, stream_);
    });
    copies("all-to-all",
           [&] { return FUNCTION(ncclAlltoAll)(sent_, received_, kCount, type, comm_, stream_); });
    copies("broadcast", [&] {
      return FUNCTION(ncclBroadcast)(sent_, received_, kCount, type, 0, comm_, stream_);
    });
    copies("a group", [&] {
      EXPECT_EQ(FUNCTION(ncclGroupStart)(), ncclSuccess);
      EXPECT_EQ(FUNCTION(ncclSend)(sent_, kCount, type, 0, comm_, stream_), ncclSuccess);
      EXPECT_EQ(FUNCTION(ncclRecv)(received_, kCount, type, 0, comm_, stream_), ncclSuccess);
      return FUNCTION(ncclGroupEnd)();
    });
  }
}

// "In-place operation will happen if sendbuff == recvbuff + rank * sendcount", and likewise.
TEST_F(NcclRulesTest, TheyMayBeInPlace) {
  Open();
  EXPECT_EQ(End(FUNCTION(ncclAllGather)(sent_, sent_, kCount, ncclFloat32, comm_, stream_)),
            ncclSuccess);
  EXPECT_EQ(
      End(FUNCTION(ncclReduceScatter)(sent_, sent_, kCount, ncclFloat32, ncclSum, comm_, stream_)),
      ncclSuccess);
  EXPECT_EQ(
      End(FUNCTION(ncclAllReduce)(sent_, sent_, kCount, ncclFloat32, ncclSum, comm_, stream_)),
      ncclSuccess);
  EXPECT_EQ(Get(sent_), values_);
}

TEST_F(NcclRulesTest, NothingIsSentOfNothing) {
  Open();
  EXPECT_EQ(End(FUNCTION(ncclAllGather)(sent_, received_, 0, ncclFloat32, comm_, stream_)),
            ncclSuccess);
  EXPECT_EQ(Get(received_), std::vector<uint8_t>(kBytes, 0xEE));
}

// The call says so, and from then on the communicator does.
TEST_F(NcclRulesTest, ARootIsOneOfTheRanks) {
  Open();
  EXPECT_EQ(End(FUNCTION(ncclBroadcast)(sent_, received_, kCount, ncclFloat32, 1, comm_, stream_)),
            ncclInvalidArgument);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(FUNCTION(ncclCommGetAsyncError)(comm_, &state), ncclSuccess);
  EXPECT_EQ(state, ncclInvalidArgument);
}

TEST_F(NcclRulesTest, EndsByFinalizeAndDestroy) {
  Open();
  EXPECT_EQ(
      End(FUNCTION(ncclAllReduce)(sent_, received_, kCount, ncclFloat32, ncclSum, comm_, stream_)),
      ncclSuccess);
  EXPECT_EQ(End(FUNCTION(ncclCommFinalize)(comm_)), ncclSuccess);
  EXPECT_EQ(FUNCTION(ncclCommDestroy)(comm_), ncclSuccess);
  comm_ = nullptr;
}

TEST_F(NcclRulesTest, EveryResultHasWords) {
  for (int result = ncclSuccess; result <= ncclInProgress; ++result) {
    EXPECT_NE(std::string(FUNCTION(ncclGetErrorString)(static_cast<ncclResult_t>(result))), "");
  }
}

}  // namespace
}  // namespace fsdp
