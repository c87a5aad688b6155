// The emulator's promises about blocks: their order, their barriers, their memory, their limits. A
// kernel with a planted bug must be noticed.
#include "tests/emulated/simt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulated/in_both_orders.h"
#include "tests/emulated/kernel_list.h"
#include "tests/emulated/library_kernels.h"
#include "trainer/core/errors.h"
#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/ptx.h"

namespace fsdp {
namespace {

using SimtTest = InBothOrders;
FSDP_IN_BOTH_ORDERS(SimtTest);

__global__ void WriteIndices(uint3* threads, uint3* blocks) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned at = block * blockDim.x * blockDim.y * blockDim.z + thread;
  threads[at] = threadIdx;
  blocks[at] = blockIdx;
}

TEST_P(SimtTest, EveryThreadOfAGridRunsOnce) {
  const dim3 grid(3, 2, 2), block(5, 4, 3);
  std::vector<uint3> threads(720, {99, 99, 99}), blocks = threads;
  Launch<WriteIndices>(nullptr, grid, block, 0, threads.data(), blocks.data());
  int at = 0;
  for (unsigned b = 0; b < 12; ++b) {
    for (unsigned t = 0; t < 60; ++t, ++at) {
      const uint3 thread{t % 5, t / 5 % 4, t / 20}, of{b % 3, b / 3 % 2, b / 6};
      EXPECT_EQ(threads[at].x, thread.x);
      EXPECT_EQ(threads[at].y, thread.y);
      EXPECT_EQ(threads[at].z, thread.z);
      EXPECT_EQ(blocks[at].x, of.x);
      EXPECT_EQ(blocks[at].y, of.y);
      EXPECT_EQ(blocks[at].z, of.z);
    }
  }
}

__global__ void WriteOrder(int* next, int* order) {
  order[(*next)++] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

TEST_P(SimtTest, OneOrderIsTheOtherReversed) {
  int next = 0;
  std::vector<int> order(120), want(120);
  Launch<WriteOrder>(nullptr, 3, 40, 0, &next, order.data());
  std::iota(want.begin(), want.end(), 0);
  if (GetParam() == EmulatedOrder::kGreedyReverse) std::reverse(want.begin(), want.end());
  EXPECT_EQ(order, want);
}

template <bool barrier>
__global__ void Reverse(float* x) {
  float* const shared = DynamicShared<float>();
  const unsigned i = threadIdx.x;
  shared[i] = x[i];
  if constexpr (barrier) __syncthreads();
  x[i] = shared[blockDim.x - 1 - i];
}

std::vector<float> UpTo(int n) {
  std::vector<float> x(n);
  std::iota(x.begin(), x.end(), 1.0f);
  return x;
}

TEST_P(SimtTest, AMissingBarrierIsAWrongResult) {
  std::vector<float> x = UpTo(100), want = x;
  std::reverse(want.begin(), want.end());
  Launch<Reverse<true>>(nullptr, 1, 100, 400, x.data());
  EXPECT_EQ(x, want);
  x = UpTo(100);
  Launch<Reverse<false>>(nullptr, 1, 100, 400, x.data());
  EXPECT_TRUE(std::isnan(x[GetParam() == EmulatedOrder::kGreedy ? 0 : 99]));
}

// The second write must not come before all have read.
template <bool barrier>
__global__ void Twice(float* x) {
  float* const shared = DynamicShared<float>();
  const unsigned i = threadIdx.x, other = blockDim.x - 1 - i;
  shared[i] = x[i];
  __syncthreads();
  float sum = shared[other];
  if constexpr (barrier) __syncthreads();
  shared[i] = 10 * x[i];
  __syncthreads();
  x[i] = sum + shared[other];
}

TEST_P(SimtTest, AMissingBarrierBetweenUsesIsAWrongResult) {
  std::vector<float> x = UpTo(64), want = x;
  std::reverse(want.begin(), want.end());
  for (float& w : want) w *= 11;
  Launch<Twice<true>>(nullptr, 1, 64, 256, x.data());
  EXPECT_EQ(x, want);
  x = UpTo(64);
  Launch<Twice<false>>(nullptr, 1, 64, 256, x.data());
  EXPECT_NE(x, want);
}

__global__ void SumAndMax(const float* x, float* sum, float* most) {
  __shared__ float sums[32], maxima[32];
  const float value = x[blockIdx.x * blockDim.x + threadIdx.x];
  const float s = BlockSum(value, sums), m = BlockMax(value, maxima);
  sum[blockIdx.x * blockDim.x + threadIdx.x] = s;
  if (threadIdx.x == 0) most[blockIdx.x] = m;
}

TEST_P(SimtTest, BlocksAddUp) {
  const std::vector<float> x = UpTo(3 * 256);
  std::vector<float> sum(x.size()), most(3);
  Launch<SumAndMax>(nullptr, 3, 256, 0, x.data(), sum.data(), most.data());
  for (int block = 0; block < 3; ++block) {
    const auto begin = x.begin() + block * 256;
    const float want = std::accumulate(begin, begin + 256, 0.0f);
    for (int i = 0; i < 256; ++i) EXPECT_EQ(sum[block * 256 + i], want);
    EXPECT_EQ(most[block], begin[255]);
  }
}

TEST_P(SimtTest, ThreadsOfTheHostRunGridsAtOnce) {
  const std::vector<float> x = UpTo(256);
  std::vector<std::thread> threads;
  std::vector<float> sums[4], most(4);
  for (int t = 0; t < 4; ++t) {
    sums[t].resize(256);
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        Launch<SumAndMax>(nullptr, 1, 256, 0, x.data(), sums[t].data(), &most[t]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& sum : sums) EXPECT_EQ(sum, std::vector<float>(256, 32896));
}

__global__ void EndsEarly(int threads, float* x) {
  if (static_cast<int>(threadIdx.x) >= threads) return;
  __syncthreads();
  x[threadIdx.x] = 1;
}

TEST_P(SimtTest, ThreadsThatHaveEndedAreNotWaitedFor) {
  std::vector<float> x(64);
  Launch<EndsEarly>(nullptr, 1, 64, 0, 40, x.data());
  EXPECT_EQ(std::accumulate(x.begin(), x.end(), 0.0f), 40);
}

// The error that ends the launch.
template <auto kernel, typename... Args>
std::string Failure(dim3 grid, dim3 block, size_t shared, const Args&... args) {
  try {
    Launch<kernel>(nullptr, grid, block, shared, args...);
  } catch (const EmulationError& error) {
    return error.what();
  }
  return "none";
}

__global__ void HalfWaits(float* x) {
  if (blockIdx.y == 2 && threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    x[threadIdx.x] = __shfl_xor_sync(kAllLanes, x[threadIdx.x], 1);
  }
}

TEST_P(SimtTest, ThreadsThatWaitForEachOtherAreAnError) {
  std::vector<float> x = UpTo(32);
  const std::string failure = Failure<HalfWaits>(dim3(1, 3), 32, 0, x.data());
  EXPECT_EQ(failure.rfind("fsdp::HalfWaits, block (0, 2, 0): the threads wait for each other: ", 0),
            0)
      << failure;
  EXPECT_NE(failure.find("16 at a shuffle"), std::string::npos) << failure;
  EXPECT_NE(failure.find("16 at the barrier of tests/emulated/simt_test.cc:"), std::string::npos)
      << failure;
  // The next one is not disturbed.
  std::vector<float> y = UpTo(100);
  Launch<Reverse<true>>(nullptr, 1, 100, 400, y.data());
  EXPECT_EQ(y[0], 100);
}

__global__ void TwoBarriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_P(SimtTest, DifferentBarriersAreAnError) {
  const std::string failure = Failure<TwoBarriers>(1, 64, 0);
  EXPECT_NE(failure.find("its threads wait at different barriers: "), std::string::npos) << failure;
}

__global__ void ReadShared(int at, float* x) { x[0] = DynamicShared<float>()[at]; }

TEST_P(SimtTest, SharedMemoryHoldsNothing) {
  for (int launch = 0; launch < 2; ++launch) {
    std::vector<float> x = UpTo(100);
    Launch<ReadShared>(nullptr, 1, 1, 400, 99, x.data());
    EXPECT_TRUE(std::isnan(x[0]));
    Launch<Reverse<true>>(nullptr, 1, 100, 400, x.data());  // Leaves numbers behind.
  }
}

TEST_P(SimtTest, SharedArraysHoldNothing) {
  std::vector<float> x = UpTo(3), y(3);
  TwiceByBlocks(x.data(), 3, /*clears=*/true, y.data());
  EXPECT_EQ(y, (std::vector<float>{2, 4, 6}));
  TwiceByBlocks(x.data(), 3, /*clears=*/false, y.data());
  for (const float value : y) EXPECT_TRUE(std::isnan(value));
}

using SimtDeathTest = SimtTest;
FSDP_IN_BOTH_ORDERS(SimtDeathTest);

TEST_P(SimtDeathTest, BeyondSharedMemory) {
  float x = 0;
  EXPECT_DEATH(Launch<ReadShared>(nullptr, 1, 1, 400, 100, &x), "");
#ifdef __SANITIZE_ADDRESS__
  EXPECT_DEATH(Launch<ReadShared>(nullptr, 1, 1, 404, 101, &x), "use-after-poison");
  EXPECT_DEATH(Launch<ReadShared>(nullptr, 1, 1, 404, -1, &x), "use-after-poison");
#endif
}

#ifdef __SANITIZE_ADDRESS__
__global__ void ReadBeyond(const float* x, int n, float* y) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i <= n) y[i] = x[i];
}

TEST_P(SimtDeathTest, AddressSanitizerSeesKernels) {
  const std::vector<float> x(40);
  std::vector<float> y(64);
  EXPECT_DEATH(Launch<ReadBeyond>(nullptr, 1, 64, 0, x.data(), 40, y.data()), "ReadBeyond");
}
#endif

template <int n>
__global__ void UsesStack(int at, float* x) {
  volatile float values[n];
  for (int i = 0; i < n; ++i) values[i] = static_cast<float>(i);
  __syncthreads();
  x[threadIdx.x] = values[at];
}

TEST_P(SimtTest, EveryThreadHasAStack) {
  std::vector<float> x(1024);
  Launch<UsesStack<2000>>(nullptr, 1, 1024, 0, 1999, x.data());
  EXPECT_EQ(x, std::vector<float>(1024, 1999));
}

__global__ void Nothing() {}
__global__ void AlsoNothing() {}
__global__ void NeverLaunchedKernel(int) {}

// As a GPU of compute capability 8.0 has it.
TEST_P(SimtTest, WhatDoesNotFitIsRefused) {
  const auto launch = [](dim3 grid, dim3 block, size_t shared) {
    Launch<Nothing>(nullptr, grid, block, shared);
  };
  EXPECT_NO_THROW(launch(1, 1024, 0));
  EXPECT_THROW(launch(1, 1025, 0), DeviceError);
  EXPECT_THROW(launch(1, dim3(33, 32), 0), DeviceError);
  EXPECT_THROW(launch(1, dim3(1, 1, 65), 0), DeviceError);
  EXPECT_THROW(launch(1, 0, 0), DeviceError);
  EXPECT_NO_THROW(launch(dim3(1, 65535), 1, 0));
  EXPECT_THROW(launch(dim3(1, 65536), 1, 0), DeviceError);
  EXPECT_THROW(launch(dim3(1, 1, 65536), 1, 0), DeviceError);
  EXPECT_NO_THROW(launch(1, 1, size_t{163} << 10));
  EXPECT_THROW(launch(1, 1, (size_t{163} << 10) + 1), DeviceError);
  cudaLaunchConfig_t config{};
  config.dynamicSmemBytes = 48 << 10;
  EXPECT_EQ(EmulateLaunch<AlsoNothing>(config), cudaSuccess);
  ++config.dynamicSmemBytes;
  EXPECT_EQ(EmulateLaunch<AlsoNothing>(config), cudaErrorInvalidValue) << "it has not asked";
}

TEST(KernelList, KnowsWhatWasLaunched) {
  int listed = 0;
  for (const EmulatedKernel* kernel : EmulatedKernels()) {
    if (kernel->name() != "fsdp::Reverse<true>") continue;
    ++listed;
    EXPECT_EQ(kernel->source(), "simt_test");
    const int64_t before = kernel->launches;
    std::vector<float> x(4);
    Launch<Reverse<true>>(nullptr, 1, 4, 16, x.data());
    EXPECT_EQ(kernel->launches, before + 1);
  }
  EXPECT_EQ(listed, 1);
}

TEST(KernelList, KnowsWhatWasNot) {
  __attribute__((unused)) const auto never = &Launch<NeverLaunchedKernel, int>;
  const std::vector<std::string> wrong = NeverLaunched("simt_test");
  EXPECT_EQ(std::count(wrong.begin(), wrong.end(), "no test launches fsdp::NeverLaunchedKernel"),
            1);
  EXPECT_EQ(std::count(wrong.begin(), wrong.end(), "no test launches fsdp::Reverse<true>"), 0);
  EXPECT_EQ(NeverLaunched("another"),
            (std::vector<std::string>{"no kernels of another.cu are linked in"}));
}

TEST_P(SimtTest, AnEmptyGridIsNoLaunch) {
  EXPECT_NO_THROW(Launch<Nothing>(nullptr, 0, 32, 0));
  EXPECT_NO_THROW(Launch<Nothing>(nullptr, dim3(1, 0), 32, 0));
}

}  // namespace
}  // namespace fsdp
