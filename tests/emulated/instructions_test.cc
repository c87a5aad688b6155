// mma.sync, ldmatrix and cp.async through trainer/ops/cuda/ptx.h, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulated/in_both_orders.h"
#include "tests/emulated/simt.h"
#include "trainer/core/philox.h"
#include "trainer/ops/cuda/ptx.h"

namespace fsdp {
namespace {

using InstructionTest = InBothOrders;
FSDP_IN_BOTH_ORDERS(InstructionTest);

// d [16, 8] += a [16, 16] b [16, 8], all row-major, by one warp.
template <typename T>
__global__ void MultiplyTile(const T* a, const T* b, float* d) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const auto pair = [](T low, T high) {
    return std::bit_cast<uint16_t>(low) | uint32_t{std::bit_cast<uint16_t>(high)} << 16;
  };
  uint32_t as[4], bs[2];
  for (int r = 0; r < 4; ++r) {
    const T* at = a + (g + r % 2 * 8) * 16 + 2 * t + r / 2 * 8;
    as[r] = pair(at[0], at[1]);
  }
  for (int r = 0; r < 2; ++r) {
    const T* at = b + (2 * t + 8 * r) * 8 + g;
    bs[r] = pair(at[0], at[8]);
  }
  float ds[4];
  for (int i = 0; i < 4; ++i) ds[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  Mma<T>(ds, as, bs);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = ds[i];
}

template <typename T>
void MmaMatchesLoops() {
  std::vector<T> a, b;
  for (int i = 0; i < 256; ++i) a.push_back(FromFloat<T>(static_cast<float>(i * 37 % 101) - 50));
  for (int i = 0; i < 128; ++i) b.push_back(FromFloat<T>(static_cast<float>(i * 53 % 89) / 8 - 5));
  std::vector<float> d(128), want(128);
  for (int i = 0; i < 128; ++i) want[i] = d[i] = static_cast<float>(i);
  Launch<MultiplyTile<T>>(nullptr, 1, 32, 0, a.data(), b.data(), d.data());
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {  // Exact in fp32: multiples of 1/8 below 2^17.
      for (int k = 0; k < 16; ++k)
        want[i * 8 + j] += ToFloat(a[i * 16 + k]) * ToFloat(b[k * 8 + j]);
    }
  }
  EXPECT_EQ(d, want);
}
TEST_P(InstructionTest, MmaMatchesLoopsInBF16) { MmaMatchesLoops<__nv_bfloat16>(); }
TEST_P(InstructionTest, MmaMatchesLoopsInFP16) { MmaMatchesLoops<__half>(); }

// r[lane][m], of matrices [32, 8] that lie in shared memory with 24 elements a row.
template <bool transposed>
__global__ void LoadFour(const uint16_t* matrices, int skew, uint32_t* r) {
  constexpr int kStride = 24;
  auto* const shared = DynamicShared<uint16_t>();
  const auto lane = static_cast<int>(threadIdx.x);
  for (int j = 0; j < 8; ++j) shared[lane * kStride + j] = matrices[lane * 8 + j];
  __syncwarp();
  uint32_t got[4];
  if constexpr (transposed) {
    LoadMatricesTransposed(got, shared + lane * kStride + skew);
  } else {
    LoadMatrices(got, shared + lane * kStride + skew);
  }
  for (int m = 0; m < 4; ++m) r[lane * 4 + m] = got[m];
}

template <bool transposed>
void LoadMatchesLoops() {
  std::vector<uint16_t> matrices(256);
  for (int i = 0; i < 256; ++i) matrices[i] = static_cast<uint16_t>(i * 257);
  std::vector<uint32_t> r(128);
  Launch<LoadFour<transposed>>(nullptr, 1, 32, 32 * 48, matrices.data(), 0, r.data());
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; ++m) {
      const auto at = [&](int row, int column) {
        return uint32_t{matrices[(m * 8 + row) * 8 + column]};
      };
      const uint32_t low = transposed ? at(2 * t, g) : at(g, 2 * t);
      const uint32_t high = transposed ? at(2 * t + 1, g) : at(g, 2 * t + 1);
      EXPECT_EQ(r[lane * 4 + m], low | high << 16) << lane << " " << m;
    }
  }
}
TEST_P(InstructionTest, LoadMatricesMatchesLoops) { LoadMatchesLoops<false>(); }
TEST_P(InstructionTest, LoadMatricesTransposedMatchesLoops) { LoadMatchesLoops<true>(); }

template <auto kernel, typename... Args>
std::string Failure(unsigned threads, const Args&... args) {
  try {
    Launch<kernel>(nullptr, 1, threads, 2048, args...);
  } catch (const EmulationError& error) {
    return error.what();
  }
  return "none";
}

TEST_P(InstructionTest, WhatAWarpMustDoTogether) {
  std::vector<uint16_t> matrices(256);
  std::vector<uint32_t> r(128);
  EXPECT_NE(Failure<LoadFour<false>>(32, matrices.data(), 1, r.data()).find("not aligned"),
            std::string::npos);
  EXPECT_NE(Failure<LoadFour<false>>(31, matrices.data(), 0, r.data()).find("part of a warp"),
            std::string::npos);
}

// Three groups of one copy of `bytes` each. Returns the shared memory when all but `left` are done.
template <int left>
__global__ void CopyGroups(const uint8_t* from, int bytes, uint8_t* seen) {
  auto* const shared = DynamicShared<uint8_t>();
  for (int group = 0; group < 3; ++group) {
    CopyAsync(shared + group * 16, from + group * 16, bytes);
    CommitCopies();
  }
  CopyAsync(shared + 48, from + 48);  // In no group.
  WaitForCopies<left>();
  for (int i = 0; i < 64; ++i) seen[i] = shared[i];
}

struct alignas(16) Bytes {
  uint8_t at[64];
};

template <int left>
void ExpectGroups(int bytes) {
  Bytes from, seen;
  for (int i = 0; i < 64; ++i) from.at[i] = static_cast<uint8_t>(i + 1);
  Launch<CopyGroups<left>>(nullptr, 1, 1, 64, &from.at[0], bytes, &seen.at[0]);
  for (int i = 0; i < 64; ++i) {
    const bool done = i / 16 < 3 - left;
    const int want = i % 16 < bytes ? i + 1 : 0;
    EXPECT_EQ(seen.at[i], done ? want : 0xff) << i;
  }
}

TEST_P(InstructionTest, CopiesAreDoneWhenTheirGroupIsWaitedFor) {
  for (const int bytes : {16, 7, 0}) {
    ExpectGroups<0>(bytes);
    ExpectGroups<1>(bytes);
    ExpectGroups<2>(bytes);
    ExpectGroups<3>(bytes);
  }
}

enum class Leaves { kNothing, kTheWait, kTheBarrier };
// Each thread copies 4 floats; the block reads them from the other end.
template <Leaves leaves>
__global__ void CopyAndReverse(const float* from, float* to) {
  auto* const shared = DynamicShared<float>();
  const unsigned i = threadIdx.x;
  CopyAsync(shared + 4 * i, from + 4 * i);
  CommitCopies();
  if constexpr (leaves != Leaves::kTheWait) WaitForCopies<0>();
  if constexpr (leaves != Leaves::kTheBarrier) __syncthreads();
  for (int j = 0; j < 4; ++j) to[4 * i + j] = shared[4 * blockDim.x - 1 - 4 * i - j];
}

template <Leaves leaves>
int NaNs() {
  struct alignas(16) {
    float at[256];
  } from;
  for (int i = 0; i < 256; ++i) from.at[i] = static_cast<float>(i);
  std::vector<float> to(256);
  Launch<CopyAndReverse<leaves>>(nullptr, 1, 64, 1024, &from.at[0], to.data());
  int nans = 0;
  for (int i = 0; i < 256; ++i) {
    if (std::isnan(to[i])) {
      ++nans;
    } else {
      EXPECT_EQ(to[i], 255 - i);
    }
  }
  return nans;
}

TEST_P(InstructionTest, AMissingWaitOrBarrierIsNaN) {
  EXPECT_EQ(NaNs<Leaves::kNothing>(), 0);
  EXPECT_EQ(NaNs<Leaves::kTheWait>(), 128) << "of threads that have not ended by then";
  EXPECT_GT(NaNs<Leaves::kTheBarrier>(), 0);
}

__global__ void CopyUnaligned(const float* from, int skew) {
  CopyAsync(DynamicShared<float>(), from + skew);
}

TEST_P(InstructionTest, CopiesAreAligned) {
  Bytes from{};
  const auto* floats = reinterpret_cast<const float*>(from.at);
  EXPECT_EQ(Failure<CopyUnaligned>(1, floats, 4), "none");
  EXPECT_NE(Failure<CopyUnaligned>(1, floats, 1).find("not aligned"), std::string::npos);
}

// Rounded to nearest, ties to even, as the project's own types; a NaN stays one.
TEST(HalfTypes, RoundAsTheProjectDoes) {
  RandomStream random(3, "half types");
  for (int i = 0; i < 100000; ++i) {
    const float x = std::bit_cast<float>(random.Bits(i));
    const BFloat16 b(x);
    const Float16 h(x);
    if (std::isnan(x)) {
      EXPECT_EQ(__float2bfloat16(x).bits, 0x7fff);
      EXPECT_EQ(__float2half(x).bits, 0x7fff);
      continue;
    }
    EXPECT_EQ(__float2bfloat16(x).bits, b.bits);
    EXPECT_EQ(__float2half(x).bits, h.bits);
    EXPECT_EQ(__bfloat162float(__float2bfloat16(x)), static_cast<float>(b));
    EXPECT_EQ(__half2float(__float2half(x)), static_cast<float>(h));
  }
}

}  // namespace
}  // namespace fsdp
