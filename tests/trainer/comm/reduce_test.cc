#include "trainer/comm/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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
