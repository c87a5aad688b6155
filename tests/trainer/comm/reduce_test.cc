#include "trainer/comm/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace fsdp {
namespace {

void ExpectCopies(Copy copy) {
  for (int64_t n = 0; n < 140; ++n) {
    for (int64_t offset : {0, 1, 4, 31}) {
      std::vector<std::byte> from(n + 64), to(n + 64, std::byte{0xab});
      for (int64_t i = 0; i < n; ++i) from[offset + i] = static_cast<std::byte>(i * 3 + 1);
      copy(to.data() + 32 - offset, from.data() + offset, n);
      for (int64_t i = 0; i < n + 64; ++i) {
        const int64_t k = i - (32 - offset);
        const auto want = k >= 0 && k < n ? static_cast<std::byte>(k * 3 + 1) : std::byte{0xab};
        ASSERT_EQ(to[i], want) << n << " bytes, offset " << offset << ", byte " << i;
      }
    }
  }
}

TEST(ReduceTest, CopiesEveryLengthAtEveryOffsetAndNothingElse) { ExpectCopies(CopyBytes); }

TEST(ReduceTest, StreamsEveryLengthAtEveryOffsetAndNothingElse) {
  ExpectCopies(StreamBytes);
  EXPECT_EQ(CopyFor(64 << 20), &StreamBytes);
  EXPECT_EQ(CopyFor(1 << 20), &CopyBytes);
}

TEST(ReduceTest, SumsInOrderIntoOneOfTheInputs) {
  for (const size_t ranks : {1, 2, 3, 5}) {
    for (const int64_t n : {0, 1, 33, 2048, 2049, 5000}) {
      for (size_t into = 0; into <= ranks; ++into) {  // `ranks`: elsewhere.
        std::vector<std::vector<float>> in(ranks + 1, std::vector<float>(n));
        std::vector<const std::byte*> from;
        for (size_t r = 0; r < ranks; ++r) {
          for (int64_t i = 0; i < n; ++i) {
            in[r][i] =
                std::ldexp(static_cast<float>(i % 97 + 1), static_cast<int>(r * 11 + i) % 25);
          }
          from.push_back(reinterpret_cast<const std::byte*>(in[r].data()));
        }
        std::vector<float> want = in[0];
        for (size_t r = 1; r < ranks; ++r) {
          for (int64_t i = 0; i < n; ++i) want[i] += in[r][i];
        }
        SumInOrder(DType::kFloat32, from, n, DType::kFloat32,
                   reinterpret_cast<std::byte*>(in[into].data()));
        ASSERT_EQ(in[into], want) << ranks << " ranks, n = " << n << ", into " << into;
      }
    }
  }
}

// Numbers of all magnitudes, subnormal ones, infinities and quiet NaNs among them; no two NaNs
// meet.
template <typename T>
T Half(size_t rank, int64_t i) {
  uint32_t bits = static_cast<uint32_t>(i) * 40503u + static_cast<uint32_t>(rank) * 7919u;
  bits = (bits ^ (bits >> 7)) & 0xffffu;
  if (std::isnan(static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(bits))))) {
    bits = i % 16 == static_cast<int64_t>(rank) ? bits | 0x240u : bits & 0x83ffu;
  }
  return std::bit_cast<T>(static_cast<uint16_t>(bits));
}

bool SameBytes(const void* a, const void* b, size_t bytes) {  // `bytes` may be 0.
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

template <typename T, typename Result>
void ExpectSumsOf(DType dtype, DType result) {
  for (const size_t ranks : {1, 2, 3, 5}) {
    for (const int64_t n : {0, 1, 15, 16, 33, 70000}) {
      for (const int offset : {0, 1}) {  // The result's: from a cache line, and not.
        std::vector<std::vector<T>> in(ranks);
        std::vector<const std::byte*> from;
        for (size_t r = 0; r < ranks; ++r) {
          for (int64_t i = 0; i < n; ++i) in[r].push_back(Half<T>(r, i));
          from.push_back(reinterpret_cast<const std::byte*>(in[r].data()));
        }
        std::vector<Result> want(n);
        for (int64_t i = 0; i < n; ++i) {
          float sum = static_cast<float>(in[0][i]);
          for (size_t r = 1; r < ranks; ++r) sum += static_cast<float>(in[r][i]);
          want[i] = Result(sum);
        }
        const auto bytes = static_cast<size_t>(n) * sizeof(Result);
        for (const bool around : {false, true}) {
          std::vector<Result> whole(n + 32);
          Result* got = whole.data();
          while (reinterpret_cast<uintptr_t>(got) % 64 != 0) ++got;
          got += offset;
          SumInOrder(dtype, from, n, result, reinterpret_cast<std::byte*>(got), around);
          ASSERT_TRUE(SameBytes(got, want.data(), bytes))
              << ranks << " ranks, n = " << n << (around ? ", around caches" : "");
        }
        if (dtype != result) continue;
        std::byte* const place = reinterpret_cast<std::byte*>(in[ranks - 1].data());
        SumInOrder(dtype, from, n, result, place);
        ASSERT_TRUE(SameBytes(place, want.data(), bytes)) << ranks << " ranks, in place";
      }
    }
  }
}

TEST(ReduceTest, SumsOfHalvesAreThoseOfTheirFloats) {
  ExpectSumsOf<BFloat16, float>(DType::kBFloat16, DType::kFloat32);
  ExpectSumsOf<BFloat16, BFloat16>(DType::kBFloat16, DType::kBFloat16);
  ExpectSumsOf<Float16, float>(DType::kFloat16, DType::kFloat32);
  ExpectSumsOf<Float16, Float16>(DType::kFloat16, DType::kFloat16);
}

TEST(ReduceTest, RoundsASumOfBFloat16Once) {
  // 256 + 1 + 1: a bf16 sum would lose both ones, the float32 one is exact.
  const BFloat16 a(256.f), b(1.f);
  const std::vector<const std::byte*> from = {reinterpret_cast<const std::byte*>(&a),
                                              reinterpret_cast<const std::byte*>(&b),
                                              reinterpret_cast<const std::byte*>(&b)};
  BFloat16 out;
  SumInOrder(DType::kBFloat16, from, 1, DType::kBFloat16, reinterpret_cast<std::byte*>(&out));
  EXPECT_EQ(static_cast<float>(out), 258.f);
  float exact = 0;
  SumInOrder(DType::kBFloat16, std::span(from).first(2), 1, DType::kFloat32,
             reinterpret_cast<std::byte*>(&exact));
  EXPECT_EQ(exact, 257.f);  // No bf16.
}

}  // namespace
}  // namespace fsdp
