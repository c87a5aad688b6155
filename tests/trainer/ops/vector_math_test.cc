#include "trainer/ops/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace fsdp {
namespace {

// Every 499th float of either sign with |x| in [from, to]: all exponents, all low bits.
std::vector<float> Floats(float from, float to) {
  std::vector<float> out;
  for (uint32_t bits = std::bit_cast<uint32_t>(from); bits <= std::bit_cast<uint32_t>(to);
       bits += 499) {
    out.push_back(std::bit_cast<float>(bits));
    out.push_back(-out.back());
  }
  return out;
}

template <typename Function>
std::vector<float> Vectorised(const Function& function, const std::vector<float>& x) {
  std::vector<float> y(x.size());
#pragma omp simd
  for (size_t i = 0; i < x.size(); ++i) y[i] = function(x[i]);
  return y;
}

TEST(Exp, ErrorIsBelowOneUlp) {
  const std::vector<float> x = Floats(0, 104);
  const std::vector<float> y = Vectorised([](float v) { return Exp(v); }, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    if (want > std::numeric_limits<float>::max()) {
      ASSERT_GE(y[i], 3.4e38f) << x[i];
    } else if (want < std::numeric_limits<float>::min()) {
      ASSERT_LE(std::abs(y[i] - want), 0x1p-149) << x[i];
    } else {
      worst = std::max(worst, std::abs(y[i] - want) / want);
    }
  }
  EXPECT_LT(worst, 0x1p-23);
  RecordProperty("worst_relative_error", std::to_string(worst * 1e9) + "e-9");
}

TEST(Exp, Ends) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0), 1);
  EXPECT_EQ(Exp(-0.0f), 1);
  EXPECT_EQ(Exp(-kInfinity), 0);
  EXPECT_EQ(Exp(-104), 0);
  EXPECT_GT(Exp(-103), 0);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(88.73f), kInfinity);
  EXPECT_LT(Exp(88.72f), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(NAN)));
}

TEST(Exp, ALoopsTailHasTheSameBits) {
  const std::vector<float> x = Floats(0.25f, 0.2502f);
  const std::vector<float> y = Vectorised([](float v) { return Exp(v); }, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const std::vector<float> alone = Vectorised([](float v) { return Exp(v); }, {x[i]});
    ASSERT_EQ(y[i], alone[0]) << x[i];
  }
}

TEST(Tanh, ErrorIsBelowTwoUlpOfOne) {
  const std::vector<float> x = Floats(0, 100);
  const std::vector<float> y = Vectorised([](float v) { return Tanh(v); }, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::abs(y[i] - std::tanh(static_cast<double>(x[i]))));
  }
  EXPECT_LT(worst, 0x1p-22);
  RecordProperty("worst_absolute_error", std::to_string(worst * 1e9) + "e-9");
  EXPECT_EQ(Tanh(std::numeric_limits<float>::infinity()), 1);
  EXPECT_EQ(Tanh(-std::numeric_limits<float>::infinity()), -1);
  EXPECT_TRUE(std::isnan(Tanh(NAN)));
}

TEST(Normal, ErrorIsBelowFourUlp) {
  const std::vector<float> x = Floats(0, 16);
  const std::vector<float> below = Vectorised([](float v) { return NormalAt(v).below; }, x);
  const std::vector<float> density = Vectorised([](float v) { return NormalAt(v).density; }, x);
  double worst_below = 0, worst_density = 0;
  const auto look = [](float got, double want, double& worst) {
    if (want < std::numeric_limits<float>::min()) {
      ASSERT_LE(std::abs(got - want), 2 * std::numeric_limits<float>::min());
    } else {
      worst = std::max(worst, std::abs(got - want) / want);
    }
  };
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    look(below[i], std::erfc(-v * M_SQRT1_2) / 2, worst_below);
    look(density[i], std::exp(-v * v / 2) / std::sqrt(2 * M_PI), worst_density);
  }
  EXPECT_LT(worst_below, 0x1p-21);
  EXPECT_LT(worst_density, 0x1p-21);
  RecordProperty("worst_relative_error", std::to_string(worst_below * 1e9) + "e-9");
}

TEST(Normal, Ends) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(NormalAt(kInfinity).below, 1);
  EXPECT_EQ(NormalAt(-kInfinity).below, 0);
  EXPECT_EQ(NormalAt(-14.6f).below, 0);
  EXPECT_NEAR(NormalAt(0).below, 0.5, 0x1p-23);
  for (const float x : {-kInfinity, -20.0f, 20.0f, kInfinity}) EXPECT_EQ(NormalAt(x).density, 0);
  EXPECT_TRUE(std::isnan(NormalAt(NAN).below));
  EXPECT_TRUE(std::isnan(NormalAt(NAN).density));
}

TEST(Normal, ALoopsTailHasTheSameBits) {
  const std::vector<float> x = Floats(0.25f, 0.2502f);
  const std::vector<float> y = Vectorised([](float v) { return NormalAt(v).below; }, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const std::vector<float> alone = Vectorised([](float v) { return NormalAt(v).below; }, {x[i]});
    ASSERT_EQ(y[i], alone[0]) << x[i];
  }
}

}  // namespace
}  // namespace fsdp
