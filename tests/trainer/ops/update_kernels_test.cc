#include "trainer/ops/cpu/update_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/trainer/ops/update_oracle.h"
#include "trainer/core/dtype.h"
#include "trainer/core/philox.h"
#include "trainer/core/view.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16, kF16 = DType::kFloat16;
constexpr uint64_t kTensor = 0xfedcba9876543210u;

TEST(UpdateOracle, IsTheHousesPhiloxWithFewerRounds) {
  const PhiloxCounter counter{1, 2, 3, 4};
  EXPECT_EQ(PhiloxOf(10, counter, {5, 6}), Philox(counter, {5, 6}));
  // Random123, tests/kat_vectors.
  EXPECT_EQ(PhiloxOf(7, {}, {}), (PhiloxCounter{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
}

// The draws of a block: of every kind, for its eight elements.
struct BlockDraw {
  uint32_t kind;
  uint64_t element;
};
std::vector<BlockDraw> DrawsOfBlock(uint64_t block) {
  std::vector<BlockDraw> draws;
  for (uint32_t kind = 0; kind < 3; ++kind) {
    for (uint64_t i = 0; i < 8; ++i) {
      draws.push_back({kind, block / 8 * 64 + block % 8 * 4 + i / 4 * 32 + i % 4});
    }
  }
  return draws;
}

// As sums of a block's eight halves, which are independent and uniform: any three draws are, and
// all of a kind are, since each sum of some of them is a sum of some halves.
TEST(UpdateDraws, AnyThreeAndAllOfAKindAreIndependent) {
  std::vector<uint32_t> sums;
  for (const auto& [kind, element] : DrawsOfBlock(0)) sums.push_back(HalvesOf(kind, element));
  ASSERT_EQ(sums.size(), 24u);
  for (size_t a = 0; a < sums.size(); ++a) {
    EXPECT_NE(sums[a], 0u);
    for (size_t b = 0; b < a; ++b) {
      EXPECT_NE(sums[a] ^ sums[b], 0u) << a << " " << b;
      for (size_t c = 0; c < b; ++c) {
        EXPECT_NE(sums[a] ^ sums[b] ^ sums[c], 0u) << a << " " << b << " " << c;
      }
    }
  }
  for (int kind = 0; kind < 3; ++kind) {
    for (uint32_t some = 1; some < 256; ++some) {
      uint32_t sum = 0;
      for (int i = 0; i < 8; ++i) sum ^= some >> i & 1 ? sums[8 * kind + i] : 0;
      EXPECT_NE(sum, 0u) << kind << ": " << some;
    }
  }
}

// Means, variances and covariances of all pairs over 2^14 blocks, within five standard errors. A
// draw is uniform in (0, 1) to 2^-16; the product of two such, each less 1/2, has the variance
// 1/144.
TEST(UpdateDraws, AreUniformAndUncorrelated) {
  constexpr uint64_t kBlocks = 1 << 14;
  const size_t count = DrawsOfBlock(0).size();
  std::vector<double> sums(count), squares(count), products(count * count);
  for (uint64_t block = 0; block < kBlocks; ++block) {
    std::vector<double> draws;
    for (const auto& [kind, element] : DrawsOfBlock(block)) {
      draws.push_back((DrawOf({1, 2}, kTensor, kind, element) + 0.5) / 65536 - 0.5);
    }
    for (size_t a = 0; a < count; ++a) {
      sums[a] += draws[a];
      squares[a] += draws[a] * draws[a] - 1.0 / 12;
      for (size_t b = 0; b < a; ++b) products[a * count + b] += draws[a] * draws[b];
    }
  }
  const double root = std::sqrt(static_cast<double>(kBlocks));
  for (size_t a = 0; a < count; ++a) {
    EXPECT_LE(std::abs(sums[a]), 5 * root / std::sqrt(12)) << a;
    EXPECT_LE(std::abs(squares[a]), 5 * root / std::sqrt(180)) << a;
    for (size_t b = 0; b < a; ++b) {
      EXPECT_LE(std::abs(products[a * count + b]), 5 * root / 12) << a << " " << b;
    }
  }
}

// A tensor for the kernels: elements [at, at + n) are theirs, on either side some are not.
struct KernelTensor {
  KernelTensor(DType dtype, const std::vector<float>& values) : dtype(dtype), bytes(4 * kElements) {
    for (size_t i = 0; i < values.size(); ++i) Put(static_cast<int64_t>(i), values[i]);
  }

  void Put(int64_t i, float value) {
    const View view = Whole();
    if (dtype == kF32) view.As<float>()[i] = value;
    if (dtype == kBF16) view.As<BFloat16>()[i] = BFloat16(value);
    if (dtype == kF16) view.As<Float16>()[i] = Float16(value);
  }
  float Get(int64_t i) {
    const View view = Whole();
    if (dtype == kF32) return view.As<float>()[i];
    return dtype == kBF16 ? float(view.As<BFloat16>()[i]) : float(view.As<Float16>()[i]);
  }

  static constexpr int64_t kElements = 300;
  DType dtype;
  std::vector<std::byte> bytes;

 private:
  View Whole() { return {bytes.data(), dtype, Shape{kElements}}; }
};

constexpr AdamWFactors kAdamW{0.7f, 0.1f, 0.999f, 0.001f, 1e-8f, 1.5f, 0.99f, 0.02f};
constexpr SgdFactors kSgd{0.7f, 0.9f, 0.05f, 0.1f};
constexpr float kRate = 0.125f;
constexpr uint32_t kDrawKey[2] = {1, 2};

// Elements [at, at + n) of these, one by one and by the kernels.
struct Shard {
  KernelTensor g, p, first, second, copy, average;

  void Update(const UpdateVariant& variant, int64_t at, int64_t n, int64_t element) {
    for (int64_t i = at; i < at + n; ++i, ++element) {
      std::array<uint32_t, 3> draws;
      for (uint32_t k = 0; k < 3; ++k) {
        draws[k] = DrawOf({kDrawKey[0], kDrawKey[1]}, kTensor, k, element);
      }
      UpdatedElement e{g.Get(i), p.Get(i), first.Get(i), second.Get(i), average.Get(i)};
      UpdateElement(variant, kAdamW, kSgd, kRate, draws, e);
      p.Put(i, e.p), first.Put(i, e.first), second.Put(i, e.second), average.Put(i, e.average);
      if (variant.copy) copy.Put(i, e.p);
    }
  }

  void Run(const UpdateKernels& kernels, const UpdateVariant& variant, const UpdateRun& run) {
    UpdateTensors t{.g = g.bytes.data(),
                    .p = p.bytes.data(),
                    .copy = variant.copy ? copy.bytes.data() : nullptr,
                    .average = variant.average ? average.bytes.data() : nullptr,
                    .g_dtype = g.dtype,
                    .p_dtype = p.dtype,
                    .state_dtype = first.dtype,
                    .copy_dtype = copy.dtype,
                    .average_rate = kRate,
                    .draw_key = {kDrawKey[0], kDrawKey[1]}};
    if (variant.rule != UpdateRule::kSgd) t.states[0] = first.bytes.data();
    if (variant.rule == UpdateRule::kAdamW) t.states[1] = second.bytes.data();
    if (variant.rule == UpdateRule::kAdamW) return kernels.adamw(t, run, kAdamW);
    kernels.sgd(t, run, kSgd);
  }
};

std::vector<const UpdateKernels*> KernelsOfThisCpu() {
  if (UseAvx512()) return {&kUpdateAvx2, &kUpdateAvx512};
  return {&kUpdateAvx2};
}

// Runs of every length up to a little more than a chunk, from all kinds of places, by each
// instruction set. Their elements have the definition's bits; the elements around them keep their
// own.
TEST(UpdateKernels, VariantsAreTheDefinition) {
  const auto values = [](int seed, double low, double high) {
    const auto doubles = Random(seed, kF32).Vector(KernelTensor::kElements, low, high);
    return std::vector<float>(doubles.begin(), doubles.end());
  };
  const auto g = values(1, -1, 1), p = values(2, -1, 1), m = values(3, -1, 1), v = values(4, 0, 1),
             a = values(5, -1, 1), c = values(6, -1, 1);
  for (const UpdateVariant& variant : EveryUpdateVariant()) {
    for (int64_t n = 1; n <= 200; n += n < 70 ? 1 : 29) {
      const int64_t at = n * 5 % 23, element = (int64_t{1} << 36) + n * 37 % 64;
      const Shard before{{variant.gradient, g},
                         {variant.master, p},
                         {variant.state, m},
                         {variant.state, v},
                         {variant.copy.value_or(kF32), c},
                         {kF32, a}};
      Shard want = before;
      want.Update(variant, at, n, element);
      for (const UpdateKernels* kernels : KernelsOfThisCpu()) {
        Shard got = before;
        got.Run(*kernels, variant, {at, n, kTensor, element});
        const std::string what = NameOf(variant) + std::to_string(n) + " from " +
                                 std::to_string(at) +
                                 (kernels == &kUpdateAvx2 ? ", AVX2" : ", AVX-512");
        ASSERT_TRUE(got.p.bytes == want.p.bytes) << what;
        ASSERT_TRUE(got.first.bytes == want.first.bytes) << what;
        ASSERT_TRUE(got.second.bytes == want.second.bytes) << what;
        ASSERT_TRUE(got.copy.bytes == want.copy.bytes) << what;
        ASSERT_TRUE(got.average.bytes == want.average.bytes) << what;
        ASSERT_TRUE(got.g.bytes == want.g.bytes) << what;
      }
    }
  }
}

// Any bits: p = g, and a copy of it. A NaN may have any payload.
TEST(UpdateKernels, InstructionSetsAgree) {
  constexpr int64_t kN = 5000;
  std::vector<float> x(kN);
  const RandomStream random(1, "bits");
  for (int64_t i = 0; i < kN; ++i) x[i] = std::bit_cast<float>(random.Bits(i));
  x[70] = std::bit_cast<float>(0x7f800001u), x[71] = std::bit_cast<float>(0xffffffffu);
  const auto bytes = [](auto& values) { return reinterpret_cast<std::byte*>(values.data()); };
  for (const int64_t element : {0, 64, 17}) {
    std::vector<std::vector<uint16_t>> results;
    for (const UpdateKernels* kernels : KernelsOfThisCpu()) {
      std::vector<uint16_t> p(kN), copy(kN), wide_copy(kN);
      std::vector<float> wide(kN);
      UpdateTensors t{.g = bytes(x),
                      .p = bytes(p),
                      .copy = bytes(copy),
                      .p_dtype = kBF16,
                      .copy_dtype = kF16,
                      .draw_key = {7, 9}};
      const SgdFactors factors{.c = 1, .momentum = 0, .lr = -1, .weight_decay = 0};
      kernels->sgd(t, {0, kN, kTensor, element}, factors);
      t.p = bytes(wide), t.p_dtype = kF32, t.copy = bytes(wide_copy), t.copy_dtype = kBF16;
      kernels->sgd(t, {0, kN, kTensor, element}, factors);
      for (int64_t i = 0; i < kN; ++i) {
        const auto is = [](uint16_t bits, uint16_t infinity) {
          return std::pair((bits & 0x7fff) > infinity, (bits & 0x7fff) == infinity);
        };
        ASSERT_EQ(is(p[i], 0x7f80), std::pair(std::isnan(x[i]), std::isinf(x[i]))) << i;
        ASSERT_EQ(is(copy[i], 0x7c00).first, std::isnan(x[i])) << i;
        if (std::isnan(x[i])) {
          ASSERT_TRUE(is(wide_copy[i], 0x7f80).first) << i;
          p[i] = copy[i] = 0;
        } else {
          ASSERT_EQ(wide_copy[i], BFloat16(x[i]).bits) << i;
        }
      }
      results.insert(results.end(), {p, copy});
    }
    for (size_t i = 2; i < results.size(); ++i) EXPECT_EQ(results[i], results[i - 2]);
  }
}

}  // namespace
}  // namespace fsdp
