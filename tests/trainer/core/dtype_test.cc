#include "trainer/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace fsdp {
namespace {

TEST(DType, SizesAndNames) {
  const std::pair<DType, std::pair<int, const char*>> kWant[] = {
      {DType::kFloat32, {4, "fp32"}}, {DType::kBFloat16, {2, "bf16"}},
      {DType::kFloat16, {2, "fp16"}}, {DType::kInt32, {4, "int32"}},
      {DType::kInt64, {8, "int64"}},  {DType::kUInt8, {1, "uint8"}}};
  for (const auto& [dtype, want] : kWant) {
    EXPECT_EQ(SizeOf(dtype), want.first);
    EXPECT_EQ(Name(dtype), want.second);
  }
}

TEST(DTypeDeathTest, HasNoOthers) {
  EXPECT_DEATH(SizeOf(static_cast<DType>(99)), "dtype 99");
  EXPECT_DEATH((void)Name(static_cast<DType>(99)), "dtype 99");
}

template <typename Half>
Half FromBits(int bits) {
  Half half;
  half.bits = static_cast<uint16_t>(bits);
  return half;
}

// The definition, from the bits: sign, exponent, fraction.
double Value(int bits, int fraction_bits, int bias) {
  const int exponent_bits = 15 - fraction_bits;
  const double sign = bits >> 15 ? -1 : 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  const double lead = exponent ? 1 << fraction_bits : 0;
  return sign * std::ldexp(lead + fraction, std::max(exponent, 1) - bias - fraction_bits);
}

template <typename T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int kFraction = 7, kBias = 127;
};
template <>
struct Format<Float16> {
  static constexpr int kFraction = 10, kBias = 15;
};

template <typename T>
class HalfTest : public ::testing::Test {
 protected:
  static double Decode(int bits) { return Value(bits, Format<T>::kFraction, Format<T>::kBias); }
};
using Halves = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryValueIsTheOneItsBitsSayAndSurvives) {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const float value = static_cast<float>(FromBits<TypeParam>(bits));
    const double want = this->Decode(bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(value)))) << bits;
    } else {
      ASSERT_EQ(value, want) << bits;
      ASSERT_EQ(TypeParam(value).bits, bits);
    }
  }
}

// Between each two neighbours: at the middle to the even one, beside the middle to the nearer one.
TYPED_TEST(HalfTest, RoundsToNearestTiesToEven) {
  const int infinity = ((1 << (15 - Format<TypeParam>::kFraction)) - 1)
                       << Format<TypeParam>::kFraction;
  for (int bits = 0; bits < infinity; ++bits) {
    const double low = this->Decode(bits);
    // Above the largest, the neighbour is the next power of two that has no bits: it rounds up.
    const double high =
        bits + 1 < infinity ? this->Decode(bits + 1) : 2 * low - this->Decode(bits - 1);
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2);  // A float holds it.
    for (const int sign : {0, 0x8000}) {
      const auto round = [&](float x) { return TypeParam(sign ? -x : x).bits; };
      ASSERT_EQ(round(middle), sign | (bits + bits % 2)) << bits;
      ASSERT_EQ(round(std::nextafter(middle, 0.0f)), sign | bits) << bits;
      ASSERT_EQ(round(std::nextafter(middle, std::numeric_limits<float>::infinity())),
                sign | (bits + 1))
          << bits;
    }
  }
}

TYPED_TEST(HalfTest, NanStaysNan) {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(nan)))) << bits;
  }
}

}  // namespace
}  // namespace fsdp
