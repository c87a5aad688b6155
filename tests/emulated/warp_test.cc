// Operations that a warp's lanes do together, compared with CUDA's programming guide.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/emulated/in_both_orders.h"
#include "tests/emulated/simt.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {
namespace {

using WarpTest = InBothOrders;
FSDP_IN_BOTH_ORDERS(WarpTest);

enum class Kind { kIndex, kXor, kUp, kDown };

template <Kind kind, typename T>
__global__ void Shuffle(int argument, int width, T* x) {
  const T value = x[threadIdx.x];
  if constexpr (kind == Kind::kIndex) {
    x[threadIdx.x] = __shfl_sync(kAllLanes, value, argument, width);
  } else if constexpr (kind == Kind::kXor) {
    x[threadIdx.x] = __shfl_xor_sync(kAllLanes, value, argument, width);
  } else if constexpr (kind == Kind::kUp) {
    x[threadIdx.x] = __shfl_up_sync(kAllLanes, value, argument, width);
  } else {
    x[threadIdx.x] = __shfl_down_sync(kAllLanes, value, argument, width);
  }
}

template <Kind kind, typename T = int>
std::vector<T> Shuffled(int argument, int width) {
  std::vector<T> x(64);
  std::iota(x.begin(), x.end(), T{100});
  Launch<Shuffle<kind, T>>(nullptr, 1, 64, 0, argument, width, x.data());
  return x;
}

// Where lane i reads, in parts of the warp of `width` lanes.
template <typename From>
std::vector<int> Want(int width, const From& from) {
  std::vector<int> x(64);
  for (int i = 0; i < 64; ++i) {
    const int begin = i / width * width, at = from(i - begin);
    x[i] = 100 + (at < 0 || at >= width ? i : begin + at);
  }
  return x;
}

TEST_P(WarpTest, ShufflesStayInTheirPart) {
  for (const int width : {32, 16, 8, 4, 2, 1}) {
    for (int n = 0; n < 32; ++n) {
      EXPECT_EQ(Shuffled<Kind::kIndex>(n, width), Want(width, [&](int) { return n % width; }));
      EXPECT_EQ(Shuffled<Kind::kUp>(n, width), Want(width, [&](int i) { return i - n; }));
      EXPECT_EQ(Shuffled<Kind::kDown>(n, width), Want(width, [&](int i) { return i + n; }));
      if (n < width) {
        EXPECT_EQ(Shuffled<Kind::kXor>(n, width), Want(width, [&](int i) { return i ^ n; }));
      }
    }
  }
  // A part may read of those before it, not of those behind.
  const std::vector<int> x = Shuffled<Kind::kXor>(16, 16);
  EXPECT_EQ(x[3], 103);
  EXPECT_EQ(x[19], 103);
}

TEST_P(WarpTest, ShufflesOfEverySize) {
  EXPECT_EQ((Shuffled<Kind::kXor, double>(1, 32)[2]), 103.0);
  EXPECT_EQ((Shuffled<Kind::kXor, int64_t>(1, 32)[2]), 103);
  EXPECT_EQ((Shuffled<Kind::kXor, float>(1, 32)[2]), 103.0f);
  EXPECT_EQ((Shuffled<Kind::kXor, uint16_t>(1, 32)[2]), 103);
}

__global__ void Vote(const int* x, unsigned* ballot, int* any, int* all) {
  const unsigned i = threadIdx.x;
  ballot[i] = __ballot_sync(kAllLanes, x[i]);
  any[i] = __any_sync(kAllLanes, x[i]);
  all[i] = __all_sync(kAllLanes, x[i]);
}

TEST_P(WarpTest, Votes) {
  std::vector<int> x(96, 0), any(96), all(96);
  std::vector<unsigned> ballot(96);
  for (int i = 0; i < 32; ++i) x[i] = i % 3 == 0, x[i + 32] = 5;
  Launch<Vote>(nullptr, 1, 96, 0, x.data(), ballot.data(), any.data(), all.data());
  EXPECT_EQ(ballot[7], 0x49249249u);
  EXPECT_EQ(ballot[40], 0xffffffffu);
  EXPECT_EQ(ballot[70], 0u);
  EXPECT_EQ((std::vector{any[7], any[40], any[70]}), (std::vector{1, 1, 0}));
  EXPECT_EQ((std::vector{all[7], all[40], all[70]}), (std::vector{0, 1, 0}));
}

// Each half by itself, then both.
__global__ void Halves(int* x) {
  const unsigned lane = threadIdx.x;
  const uint32_t half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  int sum = static_cast<int>(lane);
  if (lane < 16) {
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(half, sum, step);
  } else {
    for (int step = 1; step < 16; step *= 2) sum += __shfl_xor_sync(half, sum, step);
  }
  x[lane] = sum + 1000 * __shfl_xor_sync(kAllLanes, sum, 16);
}

TEST_P(WarpTest, MasksNameWhoTakesPart) {
  std::vector<int> x(32);
  Launch<Halves>(nullptr, 1, 32, 0, x.data());
  EXPECT_EQ(x[0], 120 + 1000 * 376);
  EXPECT_EQ(x[31], 376 + 1000 * 120);
}

// A block's last warp may be a part of one; lanes may have ended.
__global__ void SumOfThose(int end, int* x) {
  if (static_cast<int>(threadIdx.x) >= end) return;
  const unsigned there = __ballot_sync(kAllLanes, 1);
  x[threadIdx.x] = __popc(there);
}

TEST_P(WarpTest, LanesThatHaveEndedAreNotWaitedFor) {
  std::vector<int> x(40);
  Launch<SumOfThose>(nullptr, 1, 40, 0, 37, x.data());
  EXPECT_EQ(x[0], 32);
  EXPECT_EQ(x[36], 5);
  EXPECT_EQ(x[37], 0);
}

__global__ void ReadsAnEndedLane(int* x) {
  if (threadIdx.x == 9) return;
  x[threadIdx.x] = __shfl_sync(kAllLanes, 7, threadIdx.x == 3 ? 9 : 3);
}

TEST_P(WarpTest, AnEndedLaneHasNoValue) {
  std::vector<int> x(32);
  Launch<ReadsAnEndedLane>(nullptr, 1, 32, 0, x.data());
  EXPECT_EQ(x[3], -1);
  EXPECT_EQ(x[4], 7);
}

template <bool sync>
__global__ void Exchange(int* x) {
  __shared__ int shared[32];
  shared[threadIdx.x] = 0;
  __syncwarp();
  shared[threadIdx.x] = x[threadIdx.x];
  if constexpr (sync) __syncwarp();
  x[threadIdx.x] = shared[31 - threadIdx.x];
}

TEST_P(WarpTest, AMissingSyncWarpIsAWrongResult) {
  std::vector<int> x(32), want(32);
  std::iota(x.begin(), x.end(), 1);
  for (int i = 0; i < 32; ++i) want[i] = 32 - i;
  Launch<Exchange<true>>(nullptr, 1, 32, 0, x.data());
  EXPECT_EQ(x, want);
  std::iota(x.begin(), x.end(), 1);
  Launch<Exchange<false>>(nullptr, 1, 32, 0, x.data());
  EXPECT_NE(x, want);
}

enum class Bug { kMixed, kOtherMask, kNotNamed };
template <Bug bug>
__global__ void Wrong(int* x) {
  const unsigned lane = threadIdx.x;
  if (bug == Bug::kMixed && lane < 16) {
    x[lane] = __any_sync(kAllLanes, 1);
  } else if (bug == Bug::kOtherMask && lane < 16) {
    x[lane] = __shfl_sync(0x7fffffffu, 1, 0);
  } else {
    x[lane] = __shfl_sync(bug == Bug::kNotNamed ? 1u : kAllLanes, 1, 0);
  }
}

template <Bug bug>
std::string Failure() {
  std::vector<int> x(32);
  try {
    Launch<Wrong<bug>>(nullptr, 1, 32, 0, x.data());
  } catch (const EmulationError& error) {
    return error.what();
  }
  return "none";
}

TEST_P(WarpTest, LanesThatDoNotAgreeAreAnError) {
  const auto contains = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? ::testing::AssertionSuccess()
                                                : ::testing::AssertionFailure() << text;
  };
  EXPECT_TRUE(contains(Failure<Bug::kMixed>(), "lanes of a warp are at a "));
  EXPECT_TRUE(contains(Failure<Bug::kOtherMask>(), "with different masks"));
  EXPECT_TRUE(contains(Failure<Bug::kNotNamed>(), "by a lane that its mask lacks"));
}

}  // namespace
}  // namespace fsdp
