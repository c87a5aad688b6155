#include "trainer/ops/state_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/numeric.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/update_kernels.h"

namespace fsdp {
namespace {

// Lines of a name and numbers in base 16: tools/reference/adamw_8bit.py.
std::map<std::string, std::vector<uint32_t>> Fixture() {
  std::ifstream file("tests/fixtures/optimizers/adamw_8bit.txt");
  std::map<std::string, std::vector<uint32_t>> lines;
  std::string line, name;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> name >> std::hex;
    for (uint32_t word; words >> word;) lines[name].push_back(word);
  }
  return lines;
}

// The code of the value of that index in ascending order.
uint8_t CodeOf(bool sign, int index) { return static_cast<uint8_t>(sign ? index - 127 : index); }

const StateCodeTables& Tables(bool sign) { return sign ? kSignedCodes : kUnsignedCodes; }

TEST(StateCodes, ValuesAreThoseOfBitsandbytesAndTorchao) {
  const auto fixture = Fixture();
  for (const bool sign : {true, false}) {
    const auto& want = fixture.at(sign ? "signed" : "unsigned");
    ASSERT_EQ(want.size(), 256u);
    for (int i = 0; i < 256; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(Tables(sign).values[CodeOf(sign, i)]), want[i]) << i;
    }
  }
}

// By comparison with all values, in float64, where differences are exact.
int NearestIndex(bool sign, float x) {
  int best = 0;
  double least = HUGE_VAL;
  for (int i = 0; i < 256; ++i) {
    const double distance = std::abs(double{Tables(sign).values[CodeOf(sign, i)]} - double{x});
    if (distance < least) best = i, least = distance;
  }
  return !sign && x > 0 ? std::max(best, 1) : best;
}

// At both sides of every change, at ties, and between.
TEST(StateCodes, CodesAreTheNearestAndTiesGoDown) {
  for (const bool sign : {true, false}) {
    std::vector<float> x = {1e-30f, 1e-7f, 1.2e-7f};
    for (int i = 0; i + 1 < 256; ++i) {
      const float a = Tables(sign).values[CodeOf(sign, i)];
      const float b = Tables(sign).values[CodeOf(sign, i + 1)];
      const auto middle = static_cast<float>((double{a} + double{b}) / 2);
      for (const float near : {std::nextafter(middle, -2.0f), middle, std::nextafter(middle, 2.0f),
                               a, a + (b - a) / 3}) {
        x.push_back(near);
      }
    }
    const std::vector<double> more = Random(1, DType::kFloat32).Vector(4000, sign ? -1 : 0, 1);
    for (const double value : more) {
      x.push_back(static_cast<float>(value));
      x.push_back(static_cast<float>(value * value * value * std::abs(value) * 1e-3));
    }
    int ties = 0;
    for (const float value : x) {
      const std::array<float, 2> block = {value, 1};
      uint8_t codes[2];
      ASSERT_EQ(EncodeBlock(Tables(sign), block, codes), 1);
      const int want = NearestIndex(sign, value);
      ASSERT_EQ(codes[0], CodeOf(sign, want)) << value;
      ASSERT_EQ(codes[1], CodeOf(sign, 255));
      const auto of = [&](int i) { return double{Tables(sign).values[CodeOf(sign, i)]}; };
      ties += want < 255 && of(want + 1) - value == value - of(want);
    }
    EXPECT_GT(ties, 50);
  }
}

TEST(StateCodes, ZerosAndSpecialValues) {
  std::array<float, 4> zeros = {};
  std::array<uint8_t, 4> codes;
  for (const bool sign : {true, false}) {
    codes.fill(7);
    EXPECT_EQ(EncodeBlock(Tables(sign), zeros, codes.data()), 0);
    EXPECT_EQ(codes, (std::array<uint8_t, 4>{}));
    std::array<float, 4> x = {0, 2, INFINITY, 1};
    EXPECT_EQ(EncodeBlock(Tables(sign), x, codes.data()), INFINITY);
    x[0] = NAN;
    EXPECT_TRUE(std::isnan(EncodeBlock(Tables(sign), x, codes.data())));
    // A zero is a zero in any block.
    x = {0, 2, 0, 1};
    const float absmax = EncodeBlock(Tables(sign), x, codes.data());
    DecodeBlock(Tables(sign), codes.data(), absmax, x);
    EXPECT_EQ(x[0], 0);
    EXPECT_EQ(codes[0], 0);
  }
}

std::vector<const UpdateKernels*> KernelsOfThisCpu() {
  if (UseAvx512()) return {&kUpdateAvx2, &kUpdateAvx512};
  return {&kUpdateAvx2};
}

float Mixed(uint64_t i, uint64_t step) {
  uint32_t word = static_cast<uint32_t>(i * 2654435761u + step * 40503 + 12345);
  word = (word ^ (word >> 15)) * 2246822519u;
  return (static_cast<float>(word >> 16) - 32768) / 32768;
}

// Twenty steps. Both round each result of fp32 a few times a step, and torchao's ties go up; so a
// value as near to a tie as these roundings, 2^-21 of it, gets the next code, and its element goes
// on from that. Values of a moment are at least 2^-7 of themselves apart, and there are 20,480
// roundings: so about 20,480 * 2 * 2^-21 / 2^-7 = 2.5 elements part, and hardly ever more than 8.
TEST(StateCodes, TwentyStepsAreTorchaos) {
  constexpr int64_t kN = 512;
  const auto fixture = Fixture();
  for (const UpdateKernels* kernels : KernelsOfThisCpu()) {
    std::vector<float> p(kN), g(kN);
    std::vector<uint8_t> m(kN), v(kN);
    std::vector<float> m_absmax(kN / kCodeBlock), v_absmax(kN / kCodeBlock);
    for (int64_t i = 0; i < kN; ++i) p[i] = Mixed(i, 0);
    const CodedTensors coded{{m.data(), v.data()}, {m_absmax.data(), v_absmax.data()}};
    for (int step = 1; step <= 20; ++step) {
      for (int64_t i = 0; i < kN; ++i) {
        g[i] = Mixed(i, step) * std::ldexp(1.0f, -static_cast<int>(i % 7));
      }
      const UpdateTensors t{.g = reinterpret_cast<const std::byte*>(g.data()),
                            .p = reinterpret_cast<std::byte*>(p.data())};
      const double lr = 0.01;
      const AdamWFactors factors{
          .c = 1,
          .beta1_new = static_cast<float>(1 - 0.9),
          .beta2_old = 0.95f,
          .beta2_new = static_cast<float>(1 - 0.95),
          .eps = 1e-8f,
          .root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(0.95, step))),
          .keep = static_cast<float>(1 - lr * 0.1),
          .step_size = static_cast<float>(lr / (1 - std::pow(0.9, step)))};
      kernels->adamw_coded(t, coded, {0, kN, /*tensor=*/1, /*element=*/0}, factors);
    }
    int others = 0, apart = 0;
    for (int64_t i = 0; i < kN; ++i) {
      const auto code = [&](const char* name, bool sign) {
        return CodeOf(sign, static_cast<int>(fixture.at(name)[i]));
      };
      others += (m[i] != code("m", true)) + (v[i] != code("v", false));
      const float off = std::abs(p[i] - std::bit_cast<float>(fixture.at("p")[i]));
      EXPECT_LE(off, 2e-5) << i;
      apart += off > 5e-7;
    }
    EXPECT_LE(others, 8);
    EXPECT_LE(apart, 8);
  }
}

}  // namespace
}  // namespace fsdp
