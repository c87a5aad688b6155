#include "trainer/ops/cpu/quantize_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/trainer/ops/quantize_model.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

std::vector<const QuantizeKernels*> AllKernels() {
  std::vector<const QuantizeKernels*> kernels = {&kQuantizeAvx2};
  if (UseAvx512()) kernels.push_back(&kQuantizeAvx512);
  return kernels;
}

uint32_t Bits(float x) { return std::isnan(x) ? 0x7fc00000u : std::bit_cast<uint32_t>(x); }

// Numbers of all sizes, with zeros of both signs, and now and then one that is not finite.
std::vector<float> UnitOfFloats(Random& random) {
  std::vector<float> x;
  const auto exponents = random.Integers(kQuantizedUnit, 12);
  const int shift = static_cast<int>(random.Integer(-120, 100));
  for (int i = 0; const double value : random.Vector(kQuantizedUnit)) {
    const int exponent = shift - static_cast<int>(exponents[i++]);
    x.push_back(static_cast<float>(std::ldexp(value, exponent)));
  }
  x[random.Integer(0, 255)] = 0;
  x[random.Integer(0, 255)] = -0.0f;
  if (random.Integer(0, 9) == 0) x[random.Integer(0, 255)] = INFINITY;
  if (random.Integer(0, 9) == 0) x[random.Integer(0, 255)] = NAN;
  return x;
}

TEST(QuantizeKernels, AreTheModelToTheBit) {
  for (const QuantizeKernels* kernels : AllKernels()) {
    for (const QuantizedForm form : kForms) {
      const int f = static_cast<int>(form), in_byte = form == QuantizedForm::kInt4 ? 2 : 1;
      Random random(/*seed=*/5, DType::kFloat32);
      for (int turn = 0; turn < 60; ++turn) {
        const int block = kBlocks[turn % 3], blocks = kQuantizedUnit / block;
        const std::vector<float> x = UnitOfFloats(random);
        const ModelShard want = QuantizeModel({{0, kQuantizedUnit}}, {form, block, {}}, x);
        std::vector<float> scales(blocks, -1), y(kQuantizedUnit, -1);
        std::vector<uint8_t> codes(kQuantizedUnit / in_byte, 1);
        kernels->quantize[f](x.data(), block, scales.data(), codes.data());
        for (int b = 0; b < blocks; ++b) {
          float scale;
          std::memcpy(&scale, want.packed.data() + b * sizeof(float), sizeof(float));
          ASSERT_EQ(Bits(scales[b]), Bits(scale));
        }
        const std::vector<uint8_t> want_codes(want.packed.begin() + 32, want.packed.end());
        ASSERT_EQ(codes, want_codes);
        kernels->dequantize[f](codes.data(), scales.data(), block, y.data());
        for (int i = 0; i < kQuantizedUnit; ++i) ASSERT_EQ(Bits(y[i]), Bits(want.values[i])) << i;
        const std::vector<float> before = UnitOfFloats(random);
        y = before;
        kernels->add[f](codes.data(), scales.data(), block, y.data());
        for (int i = 0; i < kQuantizedUnit; ++i) {
          const volatile float value = want.values[i];  // Rounded before it is added.
          ASSERT_EQ(Bits(y[i]), Bits(before[i] + value)) << i;
        }
      }
    }
  }
}

// Each code, and the values halfway between two of them.
TEST(QuantizeKernels, RoundTiesToEven) {
  for (const QuantizeKernels* kernels : AllKernels()) {
    for (const QuantizedForm form : kForms) {
      const int f = static_cast<int>(form), levels = static_cast<int>(LevelsOf(form));
      std::vector<double> codes;  // With scale 1.
      if (form == QuantizedForm::kFp8) {
        for (int code = 0; code < 0x7f; ++code) codes.push_back(E4M3(code));
      } else {
        for (int code = 0; code <= levels; ++code) codes.push_back(code);
      }
      for (const bool halfway : {false, true}) {
        std::vector<float> x(kQuantizedUnit);
        x[0] = static_cast<float>(levels);
        for (size_t i = 0; i < codes.size() - halfway; ++i) {
          const double at = halfway ? (codes[i] + codes[i + 1]) / 2 : codes[i];
          x[1 + i] = static_cast<float>(i % 3 == 0 ? -at : at);
        }
        float scale;
        uint8_t packed[kQuantizedUnit];
        std::vector<float> y(kQuantizedUnit);
        kernels->quantize[f](x.data(), kQuantizedUnit, &scale, packed);
        kernels->dequantize[f](packed, &scale, kQuantizedUnit, y.data());
        EXPECT_EQ(scale, 1);
        for (size_t i = 0; i < codes.size() - halfway; ++i) {
          const double want = codes[halfway ? (i + 1) / 2 * 2 : i];
          EXPECT_EQ(y[1 + i], i % 3 == 0 ? -want : want) << x[1 + i];
        }
      }
    }
  }
}

// At all sizes of floats: nothing finite becomes infinite, and the largest keeps its place.
TEST(QuantizeKernels, TheLargestStaysFinite) {
  for (const QuantizeKernels* kernels : AllKernels()) {
    for (const QuantizedForm form : kForms) {
      const int f = static_cast<int>(form);
      for (uint32_t bits = 0x7f000000; bits < 0x7f800000; bits += 0x10001) {
        for (const uint32_t at : {bits, 0x7f7fffffu - (bits - 0x7f000000) / 0x10001}) {
          std::vector<float> x(kQuantizedUnit, std::bit_cast<float>(at)), y(kQuantizedUnit);
          float scale;
          uint8_t codes[kQuantizedUnit];
          kernels->quantize[f](x.data(), kQuantizedUnit, &scale, codes);
          kernels->dequantize[f](codes, &scale, kQuantizedUnit, y.data());
          ASSERT_TRUE(std::isfinite(y[0])) << x[0];
          ASSERT_NEAR(y[0] / x[0], 1, 0x1p-22) << x[0];
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
