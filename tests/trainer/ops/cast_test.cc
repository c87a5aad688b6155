#include "trainer/ops/cast.h"

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

struct Format {
  DType dtype;
  int fraction_bits, min_exponent, max_exponent;  // For normal numbers.
};
constexpr Format kFormats[] = {
    {kF32, 23, -126, 127}, {DType::kBFloat16, 7, -126, 127}, {DType::kFloat16, 10, -14, 15}};

// IEEE 754's rounding to nearest, ties to even, from its definition.
double RoundedTo(const Format& f, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), f.min_exponent);
  const double ulp = std::ldexp(1.0, exponent - f.fraction_bits);
  const double rounded = std::nearbyint(value / ulp) * ulp;
  const double largest = std::ldexp(2 - std::ldexp(1.0, -f.fraction_bits), f.max_exponent);
  return std::abs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

// Every bf16 or every fp16 value except NaN. For fp32: random bits, and the values on and beside
// the halfway points of the smaller formats.
std::vector<double> Values(const Format& f) {
  std::vector<double> values;
  const auto add = [&](double v) {
    if (!std::isnan(v)) values.push_back(v);
  };
  if (f.dtype == kF32) {
    const RandomStream random(1, "bits");
    for (int i = 0; i < 50000; ++i) add(std::bit_cast<float>(random.Bits(i)));
    for (int i = 0; i < 5000; ++i) {
      const float small = std::ldexp(random.Uniform(100000 + i), -26 + i % 44);  // fp16's range.
      add(small);
      for (const uint32_t half : {0x7fffu, 0x8000u, 0x8001u, 0xfffu, 0x1000u, 0x1001u}) {
        const uint32_t kept = half > 0x1001u ? 0xffff0000u : 0xffffe000u;
        add(std::bit_cast<float>((std::bit_cast<uint32_t>(small) & kept) | half));
      }
    }
    for (const double v : {65504.0, 65519.996, 65520.0, 65536.0}) add(static_cast<float>(v));
    return values;
  }
  for (int bits = 0; bits < 65536; ++bits) {
    const int exponent_bits = 15 - f.fraction_bits;
    const int fraction = bits & ((1 << f.fraction_bits) - 1);
    const int exponent = (bits >> f.fraction_bits) & ((1 << exponent_bits) - 1);
    double v = exponent == 0 ? std::ldexp(fraction, f.min_exponent - f.fraction_bits)
                             : std::ldexp((1 << f.fraction_bits) + fraction,
                                          exponent - 1 + f.min_exponent - f.fraction_bits);
    if (exponent == (1 << exponent_bits) - 1) v = fraction == 0 ? INFINITY : NAN;
    add(bits & 0x8000 ? -v : v);
  }
  return values;
}

class CastTest : public OpTest {
 protected:
  // The format that is cast.
  const Format& from() const {
    for (const Format& f : kFormats) {
      if (f.dtype == dtype()) return f;
    }
    throw std::logic_error("no format");
  }
};
FSDP_INSTANTIATE_OP_TEST(CastTest, kF32, DType::kBFloat16, DType::kFloat16);

TEST_P(CastTest, RoundsToNearestEven) {
  const auto values = Values(from());
  const int64_t n = values.size();
  const View x = Input({n}, values);
  ASSERT_EQ(Get(x), values);
  for (const Format& to : kFormats) {
    const View y = Output({n}, to.dtype);
    Run([&](Stream& stream) { Cast(stream, x, y); });
    const auto got = Get(y);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(got[i], RoundedTo(to, values[i])) << values[i] << " to " << Name(to.dtype);
      ASSERT_EQ(std::signbit(got[i]), std::signbit(values[i]));
    }
  }
}

// The loops' bodies and their tails.
TEST_P(CastTest, NaNStaysNaN) {
  for (const Format& to : kFormats) {
    const View x = Output({13}), y = Input({13}, std::vector<double>(13), to.dtype);
    Run([&](Stream& stream) { Cast(stream, x, y); });
    for (const double v : Get(y)) EXPECT_TRUE(std::isnan(v));
  }
}

TEST_P(CastTest, OddSizes) {
  for (const int64_t n : {0, 1, 7, 9, 257, 2049}) {
    const auto values = Random(n, dtype()).Vector(n);
    for (const Format& to : kFormats) {
      const View x = Input({n}, values), y = Output({n}, to.dtype);
      Run([&](Stream& stream) { Cast(stream, x, y); });
      std::vector<double> want;
      for (const double v : values) want.push_back(RoundedTo(to, v));
      EXPECT_EQ(Get(y), want);
    }
    Clear();
  }
}

TEST_P(CastTest, TensorsBeginAnywhere) {
  constexpr int64_t kSize = 64, kPart = 21;
  const auto values = Random(7, dtype()).Vector(kSize);
  const View x = Input({kSize}, values);
  for (const Format& format : kFormats) {
    for (const int64_t from : {0, 1, 8}) {
      for (const int64_t to : {0, 2, 16}) {
        const View y = Accumulated({kSize}, 7, format.dtype);
        Run([&](Stream& stream) { Cast(stream, x.Slice(from, kPart), y.Slice(to, kPart)); });
        std::vector<double> want(kSize, 7);
        for (int64_t i = 0; i < kPart; ++i) want[to + i] = RoundedTo(format, values[from + i]);
        EXPECT_EQ(Get(y), want);
      }
    }
  }
}

TEST_P(CastTest, RefusesWrongArguments) {
  const View x = Output({6}, kF32);
  ExpectRefused([&](Stream& s) { Cast(s, x, Output({5}, DType::kBFloat16)); }, "[cast] x is fp32");
  const View inside(x.data, DType::kBFloat16, {6});
  ExpectRefused([&](Stream& s) { Cast(s, x, inside); }, "overlap");
  ExpectDTypesRefused("cast", [&](Stream& s) { Cast(s, Output({6}), Output({6})); });
}

}  // namespace
}  // namespace fsdp
