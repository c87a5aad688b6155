#include "trainer/core/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

namespace fsdp {
namespace {

// The known answers of the authors' own distribution (Random123, tests/kat_vectors, philox4x32 10).
TEST(Philox, MatchesPublishedVectors) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, ValueBelongsToSeedNameSaltAndIndex) {
  const RandomStream a(1, "h.0.attn.c_attn.weight");
  EXPECT_EQ(a.Bits(12345), RandomStream(1, "h.0.attn.c_attn.weight").Bits(12345));
  EXPECT_NE(a.Bits(12345), RandomStream(2, "h.0.attn.c_attn.weight").Bits(12345));
  EXPECT_NE(a.Bits(12345), RandomStream(1, "h.1.attn.c_attn.weight").Bits(12345));
  EXPECT_NE(a.Bits(12345), RandomStream(1, "h.0.attn.c_attn.weight", 1).Bits(12345));
}

// A salt that were only xor-ed in would turn "a", salt 3 into "b", salt 0.
TEST(RandomStream, NoSaltTurnsOneNameIntoAnother) {
  for (int salt = 1; salt < 256; ++salt) {
    const std::string other(1, static_cast<char>('a' ^ salt));
    EXPECT_NE(HashBytes("a", salt), HashBytes(other)) << salt;
    EXPECT_NE(HashBytes("a" + std::string(20, 'x'), salt), HashBytes(other + std::string(20, 'x')));
  }
}

// Initial weights and data order hang on these: a change of any of them is a change of every run.
// The numbers were worked out with Python's integers from the definitions in philox.h.
TEST(RandomStream, ValuesAreForEver) {
  const RandomStream stream(1337, "transformer.h.0.mlp.c_fc.weight", 2);
  EXPECT_EQ(stream.Bits(0), 0x03b21fe3u);
  EXPECT_EQ(stream.Bits(1), 0x3db0aaf9u);
  EXPECT_EQ(stream.Bits(5), 0x9490b8ccu);
  EXPECT_EQ(stream.Uniform(3), 0x1.164bp-8f);
  EXPECT_EQ(stream.Below(4, 1000), 91u);
  EXPECT_EQ(stream.Below(4, uint64_t{1} << 62), 0x05dab834041d3538u);  // All bits of it.
  EXPECT_FLOAT_EQ(stream.Normal(0), 2.1333307336f);
  EXPECT_FLOAT_EQ(stream.Normal(1), 1.9811262694f);
  EXPECT_EQ(HashBytes("wte.weight"), 0xf076d5014e5a1640u);
}

TEST(RandomStream, ElementsDoNotDependOnWhoAsksInWhichOrder) {
  const RandomStream stream(7, "w");
  std::array<float, 64> forward{}, backward{};
  for (int i = 0; i < 64; ++i) forward[i] = stream.Normal(i);
  for (int i = 63; i >= 0; --i) backward[i] = RandomStream(7, "w").Normal(i);
  EXPECT_EQ(forward, backward);
}

TEST(RandomStream, IndicesBeyond32BitsAreDistinct) {
  const RandomStream stream(8, "large");
  EXPECT_NE(stream.Bits(5), stream.Bits(5 + (uint64_t{1} << 34)));
  EXPECT_NE(stream.Normal(5), stream.Normal(5 + (uint64_t{1} << 33)));
}

TEST(RandomStream, UniformIsOpenAndEven) {
  const RandomStream stream(3, "u");
  constexpr int kN = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kN; ++i) {
    const double u = stream.Uniform(i);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  // Five standard errors: a fixed seed, so it never flickers.
  EXPECT_NEAR(sum / kN, 0.5, 5 * std::sqrt(1 / 12.0 / kN));
  EXPECT_NEAR(squares / kN, 1 / 3.0, 5 * std::sqrt(4 / 45.0 / kN));
}

TEST(RandomStream, NormalHasItsMoments) {
  const RandomStream stream(4, "n");
  constexpr int kN = 100000;
  double m1 = 0, m2 = 0, m4 = 0, neighbours = 0, before = 0;
  for (int i = 0; i < kN; ++i) {
    const double x = stream.Normal(i);
    m1 += x, m2 += x * x, m4 += x * x * x * x, neighbours += x * before, before = x;
  }
  EXPECT_NEAR(m1 / kN, 0, 5 / std::sqrt(kN));
  EXPECT_NEAR(m2 / kN, 1, 5 * std::sqrt(2.0 / kN));
  EXPECT_NEAR(m4 / kN, 3, 5 * std::sqrt(96.0 / kN));
  EXPECT_NEAR(neighbours / kN, 0, 5 / std::sqrt(kN));  // The two of a pair are independent.
}

TEST(RandomStream, BelowCoversItsRange) {
  const RandomStream stream(5, "b");
  std::array<int, 7> seen{};
  for (int i = 0; i < 70000; ++i) ++seen.at(stream.Below(i, 7));
  for (const int n : seen) EXPECT_NEAR(n, 10000, 500);
}

}  // namespace
}  // namespace fsdp
