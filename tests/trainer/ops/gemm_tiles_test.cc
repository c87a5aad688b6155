// Sums on tiles, to the bit: by the emulations, and by the instructions, which a signal's handler
// executes where the processor has none.
#include "trainer/ops/cpu/gemm/gemm_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/flushed_subnormals.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/illegal_tiles.h"
#include "trainer/core/dtype.h"
#include "trainer/ops/cpu/kinds.h"

namespace fsdp {
namespace {

constexpr int64_t kElement = 2;

struct Kernels {
  std::string name;
  const GemmTileKernels* table;
};

std::vector<Kernels> Emulations() {
  std::vector<Kernels> all = {{"avx2", &kGemmTilesAvx2}};
  if (__builtin_cpu_supports("avx512bw")) all.push_back({"avx512", &kGemmTilesAvx512});
  return all;
}

struct Sizes {
  int64_t m, n, k;
  bool a_turned, b_turned;
  int64_t gap = 0;  // Elements between stored rows: NaN.

  std::string Text() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) +
           (a_turned ? " A turned" : "") + (b_turned ? " B turned" : "");
  }
};

// op(X)[i, k] in memory, k contiguous or i.
struct Factor {
  Factor(int64_t n, int64_t k, bool turned, int64_t gap)
      : next_i(turned ? 1 : k + gap),
        next_k(turned ? n + gap : 1),
        values(turned ? k * (n + gap) : n * (k + gap), BFloat16(NAN)) {}
  BFloat16& At(int64_t i, int64_t l) { return values[i * next_i + l * next_k]; }
  TileFactor InTiles() const {
    return {reinterpret_cast<const char*>(values.data()), next_i * kElement, next_k * kElement};
  }

  int64_t next_i, next_k;
  std::vector<BFloat16> values;
};

struct Factors {
  template <typename Draw>
  Factors(const Sizes& s, const Draw& draw)
      : sizes(s), a(s.m, s.k, s.a_turned, s.gap), b(s.n, s.k, s.b_turned, s.gap) {
    for (int64_t l = 0; l < s.k; ++l) {
      for (int64_t i = 0; i < s.m; ++i) a.At(i, l) = draw();
      for (int64_t j = 0; j < s.n; ++j) b.At(j, l) = draw();
    }
  }

  // The definition of gemm.h.
  float Sum(int64_t i, int64_t j) {
    float sum = 0;
    for (int64_t first = 0; first < sizes.k; first += 32) {
      float even = 0, odd = 0;
      for (int64_t l = first; l < std::min(first + 32, sizes.k); ++l) {
        float& chain = l % 2 == 0 ? even : odd;
        chain = std::fma(static_cast<float>(a.At(i, l)), static_cast<float>(b.At(j, l)), chain);
      }
      sum = sum + (even + odd);
    }
    return sum;
  }

  Sizes sizes;
  Factor a, b;
};

// The sums of a product, each of which must be finished once.
std::vector<float> SumsOf(const GemmTileKernels& kernels, const Factors& x) {
  static const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(64, kTileProductBytes)), &std::free);
  struct Result {
    std::vector<float> sums;
    std::vector<int> finished;
    int64_t n;
  } result{std::vector<float>(x.sizes.m * x.sizes.n, NAN), std::vector<int>(x.sizes.m * x.sizes.n),
           x.sizes.n};
  kernels.multiply(
      {.a = x.a.InTiles(),
       .b = x.b.InTiles(),
       .rows = x.sizes.m,
       .cols = x.sizes.n,
       .k = x.sizes.k,
       .memory = memory.get(),
       .c = reinterpret_cast<char*>(result.sums.data()),
       .c_row = x.sizes.n * 4,
       .dtype = DType::kFloat32,
       .finish =
           [](const void* context, int64_t row, int64_t rows, int64_t col, int64_t cols) noexcept {
             auto& to = *static_cast<Result*>(const_cast<void*>(context));
             for (int64_t i = 0; i < rows; ++i) {
               for (int64_t j = 0; j < cols; ++j) ++to.finished[(row + i) * to.n + col + j];
             }
           },
       .context = &result});
  EXPECT_EQ(std::ranges::count(result.finished, 1), x.sizes.m * x.sizes.n);
  return result.sums;
}

// Every `every`-th sum is that of the definition, and near that of float64 if `near`.
void Check(const Kernels& kernels, Factors& x, bool near = true, int64_t every = 1) {
  SCOPED_TRACE(kernels.name + " " + x.sizes.Text());
  const std::vector<float> got = SumsOf(*kernels.table, x);
  const FlushedSubnormals flushed;
  int64_t wrong = 0, far = 0;
  for (int64_t at = 0; at < x.sizes.m * x.sizes.n; at += every) {
    const int64_t i = at / x.sizes.n, j = at % x.sizes.n;
    const float want = x.Sum(i, j);
    wrong += std::bit_cast<uint32_t>(got[at]) != std::bit_cast<uint32_t>(want) &&
             !(std::isnan(got[at]) && std::isnan(want));
    if (!near) continue;
    double exact = 0;
    for (int64_t l = 0; l < x.sizes.k; ++l) {
      exact += static_cast<double>(static_cast<float>(x.a.At(i, l))) *
               static_cast<double>(static_cast<float>(x.b.At(j, l)));
    }
    far += std::abs(got[at] - exact) >
           Tolerance(DType::kFloat32, x.sizes.k) * std::max(1.0, std::abs(exact));
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(far, 0);
}

Factors Uniform(Random& random, const Sizes& sizes) {
  return {sizes, [&] { return BFloat16(static_cast<float>(random.Vector(1)[0])); }};
}

// Each size from 1 to 70 in each direction, the others drawn, which is another draw at another
// part.
TEST(GemmTiles, EverySize) {
  Random random(1 + testing::Part(4), DType::kFloat32);
  for (int64_t size = 1; size <= 70; ++size) {
    for (int which = 0; which < 12; ++which) {
      const auto other = [&] { return random.Integer(1, 70); };
      Sizes sizes{other(), other(), other(), (which & 1) != 0, (which & 2) != 0, other() % 4};
      (which < 4 ? sizes.m : which < 8 ? sizes.n : sizes.k) = size;
      Factors x = Uniform(random, sizes);
      for (const Kernels& kernels : Emulations()) Check(kernels, x);
    }
  }
}

// Several blocks of k, of columns and of rows; an A that stays packed and one that cannot.
TEST(GemmTiles, ManyBlocks) {
  Random random(2, DType::kFloat32);
  for (const Sizes& sizes : {Sizes{70, 400, 1568, false, true},
                             {70, 800, 1550, true, false},
                             {1100, 790, 1100, true, true},
                             {3400, 40, 800, false, false},
                             {33, 900, 8000, true, false},
                             {40, 36, 2048, false, false}}) {
    Factors x = Uniform(random, sizes);
    for (const Kernels& kernels : Emulations()) {
      Check(kernels, x, /*near=*/true, /*every=*/sizes.m * sizes.n / 2000 + 1);
    }
  }
}

// A subnormal factor is zero, and so is a sum that would be one; infinities and NaN stay.
TEST(GemmTiles, NumbersAtTheEdges) {
  Random random(3, DType::kFloat32);
  for (int times = 0; times < 24; ++times) {
    const Sizes sizes{random.Integer(1, 40), random.Integer(1, 40), random.Integer(1, 100),
                      times % 2 == 0, times % 4 < 2};
    const auto bits = [&](uint32_t keep, uint32_t set) {
      return std::bit_cast<BFloat16>(
          static_cast<uint16_t>((random.Integer(0, 0xffff) & keep) | set));
    };
    Factors x(sizes, [&] {
      // Products around the smallest normal number, or any bits.
      return times % 3 == 0 ? bits(0xffff, 0) : bits(0x83ff, 0x1e00);
    });
    for (const Kernels& kernels : Emulations()) Check(kernels, x, /*near=*/false);
  }
}

// round(fma(beta, C, alpha sum) + bias + D), each step rounded by itself, in each dtype of C and
// behind the last whole vector.
TEST(GemmTiles, FinishesByTheDefinition) {
  const FlushedSubnormals flushed;
  Random random(5, DType::kFloat32);
  constexpr int64_t kM = 33, kN = 51, kK = 70;
  Factors x = Uniform(random, {kM, kN, kK, false, true});
  const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(64, kTileProductBytes)), &std::free);
  const std::vector<double> drawn = random.Vector(kN);
  const std::vector<float> bias(drawn.begin(), drawn.end());
  const auto check = [&](auto element, const Kernels& kernels, int terms) {
    using T = decltype(element);
    std::vector<T> c, added, want;
    for (const double value : random.Vector(kM * kN)) c.emplace_back(static_cast<float>(value));
    for (const double value : random.Vector(kM * kN)) added.emplace_back(static_cast<float>(value));
    const bool has_beta = terms & 1, has_bias = terms & 2, has_added = terms & 4;
    const float alpha = 0.7f, beta = has_beta ? 0.3f : 0.0f;
    for (int64_t at = 0; at < kM * kN; ++at) {
      volatile float value = alpha * x.Sum(at / kN, at % kN);  // Not fused with what follows.
      if (has_beta) value = std::fma(beta, static_cast<float>(c[at]), value);
      if (has_bias) value = value + bias[at % kN];
      if (has_added) value = value + static_cast<float>(added[at]);
      want.emplace_back(static_cast<float>(value));
    }
    kernels.table->multiply(
        {.a = x.a.InTiles(),
         .b = x.b.InTiles(),
         .rows = kM,
         .cols = kN,
         .k = kK,
         .memory = memory.get(),
         .c = reinterpret_cast<char*>(c.data()),
         .c_row = kN * static_cast<int64_t>(sizeof(T)),
         .dtype = sizeof(T) == 4                ? DType::kFloat32
                  : std::is_same_v<T, BFloat16> ? DType::kBFloat16
                                                : DType::kFloat16,
         .alpha = alpha,
         .beta = beta,
         .bias = has_bias ? bias.data() : nullptr,
         .added = has_added ? reinterpret_cast<const char*>(added.data()) : nullptr});
    EXPECT_EQ(std::memcmp(c.data(), want.data(), want.size() * sizeof(T)), 0)
        << kernels.name << ", " << sizeof(T) << " bytes, terms " << terms;
  };
  for (const Kernels& kernels : Emulations()) {
    for (int terms = 0; terms < 8; ++terms) {
      check(float(), kernels, terms);
      check(BFloat16(), kernels, terms);
      check(Float16(), kernels, terms);
    }
  }
}

// The mode of the thread does not matter, and stays.
TEST(GemmTiles, SubnormalsAreZeroInAnyThread) {
  const unsigned before = _mm_getcsr();
  Factors x({1, 1, 2, false, false}, [] { return BFloat16(0x1p-64f); });
  for (const Kernels& kernels : Emulations()) EXPECT_EQ(SumsOf(*kernels.table, x)[0], 0);
  EXPECT_EQ(_mm_getcsr(), before);
}

// The instructions as they are compiled: where the processor has them by itself, elsewhere by a
// handler that knows Intel's manual. Their tiles are released at the product's end.
TEST(GemmTiles, TheInstructionsGiveTheSame) {
  std::unique_ptr<testing::IllegalTiles> illegal;
  if (!__builtin_cpu_supports("avx512f")) {
    GTEST_SKIP()
        << "what lies around the tiles' instructions is AVX-512, which nobody handles here";
  } else if (!__builtin_cpu_supports("amx-tile")) {
    illegal = std::make_unique<testing::IllegalTiles>();
  } else if (ThisIsa().tiles != TileUse::kHardware) {
    GTEST_SKIP() << "this processor has tiles, which FSDP_TRAIN_ISA or the system leaves unused";
  }
  Random random(4, DType::kFloat32);
  const Kernels kernels{"amx", &kGemmTilesAmx};
  for (int bits = 0; bits < 24; ++bits) {
    const auto size = [&] { return random.Integer(1, 70); };
    Factors x = Uniform(random, {size(), size(), bits % 3 == 0 ? 64 : size(), (bits & 1) != 0,
                                 (bits & 2) != 0, bits % 5});
    Check(kernels, x);
    EXPECT_FALSE(testing::IllegalTiles::configured());
  }
  Factors blocks = Uniform(random, {35, 50, 1600, false, true});
  Check(kernels, blocks);
  Factors kept = Uniform(random, {34, 800, 600, true, false});
  Check(kernels, kept);
  if (illegal == nullptr) return;
  EXPECT_GT(testing::IllegalTiles::products(), 1000);
  EXPECT_TRUE(TilesGiveTheDefinition(kGemmTilesAmx));
}

// The self-test at a start: a processor that adds in another order is not used.
TEST(GemmTiles, AnotherOrderIsNoticed) {
  EXPECT_TRUE(TilesGiveTheDefinition(kGemmTilesAvx2));
  const GemmTileKernels other = {[](const TileProduct& product) {
    TileProduct shorter = product;
    shorter.k -= 1;
    kGemmTilesAvx2.multiply(shorter);
  }};
  EXPECT_FALSE(TilesGiveTheDefinition(other));
}

}  // namespace
}  // namespace fsdp
