// Gemm() of bf16 and fp16 factors and results, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/flushed_subnormals.h"
#include "tests/testing/numeric.h"
#include "trainer/core/dtype.h"
#include "trainer/core/errors.h"
#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/ops/cpu/gemm/gemm_kernels.h"
#include "trainer/ops/cpu/gemm/gemm_pairs.h"
#include "trainer/ops/cpu/kinds.h"

namespace fsdp {
namespace {

// A program that is to run a kind of kernels skips where the processor lacks it.
class KindIsThere : public ::testing::Environment {
 protected:
  void SetUp() override {
    try {
      (void)ThisIsa();
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};
[[maybe_unused]] const auto* const kind_is_there =
    ::testing::AddGlobalTestEnvironment(new KindIsThere);

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

float Get(const std::vector<char>& bytes, DType dtype, int64_t i) {
  const auto as = [&](auto value) {
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    return static_cast<float>(value);
  };
  if (dtype == DType::kFloat32) return as(float());
  return dtype == DType::kBFloat16 ? as(BFloat16()) : as(Float16());
}

void Set(std::vector<char>& bytes, DType dtype, int64_t i, float x) {
  const auto put = [&](auto value) {
    std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
  };
  if (dtype == DType::kFloat32) return put(x);
  return dtype == DType::kBFloat16 ? put(BFloat16(x)) : put(Float16(x));
}

// Rows with a gap after each; gaps are NaN.
struct Stored {
  Stored(Random& random, DType dtype, int64_t rows, int64_t cols, int64_t gap)
      : dtype(dtype), stride(cols + gap), bytes(rows * stride * SizeOf(dtype)) {
    for (int64_t i = 0; i < rows * stride; ++i) Set(bytes, dtype, i, NAN);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> row = random.Vector(cols);
      for (int64_t c = 0; c < cols; ++c) {
        Set(bytes, dtype, r * stride + c, static_cast<float>(row[c]));
      }
    }
  }
  float At(int64_t r, int64_t c, bool transposed = false) const {
    return Get(bytes, dtype, transposed ? c * stride + r : r * stride + c);
  }
  GemmOperand Operand(bool transposed) const { return {bytes.data(), stride, transposed, dtype}; }

  DType dtype;
  int64_t stride;
  std::vector<char> bytes;
};

struct Problem {
  int64_t m, n, k;
  bool ta, tb;
  DType a, b, c;
  float alpha, beta;
  int64_t gap;
  bool bias;
};
void PrintTo(const Problem& p, std::ostream* out) {
  *out << p.m << "x" << p.n << "x" << p.k << " ta " << p.ta << " tb " << p.tb << " " << Name(p.a)
       << " " << Name(p.b) << " to " << Name(p.c) << " alpha " << p.alpha << " beta " << p.beta
       << " gap " << p.gap << " bias " << p.bias;
}

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

bool IsOfTwoBf16(const Problem& p) { return p.a == DType::kBFloat16 && p.b == DType::kBFloat16; }

// The definitions of gemm.h, an element at a time. Tiles: for each 32 k two chains of fused
// multiply-adds.
float ElementOfTiles(const Problem& p, const Stored& a, const Stored& b, float c, float bias,
                     int64_t i, int64_t j) {
  float sum = 0;
  for (int64_t first = 0; first < p.k; first += 32) {
    float chains[2] = {};
    for (int64_t l = first; l < std::min(p.k, first + 32); ++l) {
      chains[l % 2] = std::fma(a.At(i, l, p.ta), b.At(l, j, p.tb), chains[l % 2]);
    }
    sum = sum + (chains[0] + chains[1]);
  }
  sum = p.alpha * sum;
  if (p.beta != 0) sum = std::fma(p.beta, c, sum);
  return p.bias ? sum + bias : sum;
}

// Otherwise blocks of k, each a chain of fused multiply-adds, of two bf16 in pairs.
float Element(const Problem& p, const Stored& a, const Stored& b, float c, float bias, int64_t i,
              int64_t j) {
  constexpr int64_t kMaxK = 512;
  const int64_t blocks = (p.k + kMaxK - 1) / kMaxK;
  const int64_t length = ((p.k + blocks - 1) / blocks + 7) / 8 * 8;
  const bool pairs = IsOfTwoBf16(p);
  if (pairs && ThisIsa().tiles != TileUse::kNone) return ElementOfTiles(p, a, b, c, bias, i, j);
  // An fp32 C is what the first block is added to, another one is added at the end.
  float total = p.c == DType::kFloat32 ? p.beta * c : 0.0f;
  bool add = p.c == DType::kFloat32 && p.beta != 0;
  for (int64_t first = 0; first < p.k; first += length, add = true) {
    const int64_t last = std::min(p.k, first + length);
    float sum = 0;
    for (int64_t l = first; l < last; l += pairs ? 2 : 1) {
      const float x = a.At(i, l, p.ta), y = b.At(l, j, p.tb);
      if (!pairs) {
        sum = std::fma(x, y, sum);
        continue;
      }
      const float odd_x = l + 1 < last ? a.At(i, l + 1, p.ta) : 0.0f;
      const float odd_y = l + 1 < last ? b.At(l + 1, j, p.tb) : 0.0f;
      sum = AddPair(sum, Bits(x) >> 16 | Bits(odd_x), Bits(y) >> 16 | Bits(odd_y));
    }
    total = add ? p.alpha * sum + total : p.alpha * sum;
  }
  if (p.bias) total += bias;
  if (p.c != DType::kFloat32 && p.beta != 0) total += p.beta * c;
  return total;
}

void Check(const Problem& p, int threads, uint64_t seed) {
  SCOPED_TRACE(::testing::PrintToString(p) + " threads " + std::to_string(threads));
  Random random(seed, DType::kFloat32);
  const Stored a(random, p.a, p.ta ? p.k : p.m, p.ta ? p.m : p.k, p.gap);
  const Stored b(random, p.b, p.tb ? p.n : p.k, p.tb ? p.k : p.n, p.gap);
  Stored c(random, p.c, p.m, p.n, p.gap);
  const Stored before = c;
  const std::vector<double> bias_values = random.Vector(p.n);
  const std::vector<float> bias(bias_values.begin(), bias_values.end());
  ThreadPool pool(threads, /*spin=*/false);
  Gemm(pool, p.m, p.n, p.k, a.Operand(p.ta), b.Operand(p.tb), {c.bytes.data(), c.stride, p.c},
       {.alpha = p.alpha, .beta = p.beta, .bias = p.bias ? bias.data() : nullptr});
  std::vector<char> want = before.bytes;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      Set(want, p.c, i * c.stride + j, Element(p, a, b, before.At(i, j), bias[j], i, j));
    }
  }
  int64_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) wrong += want[i] != c.bytes[i];
  EXPECT_EQ(wrong, 0) << "of " << want.size() << " bytes";
}

// The instruction set in use decides, and the second word of FSDP_TRAIN_ISA.
TEST(GemmBf16, KernelsSuitTheCpu) {
  const IsaChoice& isa = ThisIsa();
  const char* wanted = std::getenv("FSDP_TRAIN_ISA");
  const bool any = wanted == nullptr || isa.tiles != TileUse::kNone || isa.name == "avx512_bf16";
  EXPECT_EQ(HasPairs(), any && __builtin_cpu_supports("avx512bf16") > 0);
  if (isa.pairs != PairWay::kFaster) {
    EXPECT_EQ(MultiplyPairs(), isa.pairs == PairWay::kInstruction);
  }
  EXPECT_LE(MultiplyPairs(), HasPairs());
  const char* const word = MultiplyPairs() ? " pairs" : " floats";
  EXPECT_EQ(KernelsInUse(), isa.name + (HasPairs() ? word : ""));
}

TEST(GemmBf16, TheFasterWayIsTaken) {
  int measured = 0;
  const auto takes = [&measured](double instruction, double floats) {
    return [=, &measured] {
      ++measured;
      return PairTimes{instruction, floats};
    };
  };
  EXPECT_TRUE(UsePairs(PairWay::kFaster, true, takes(1.0, 1.7)));
  EXPECT_TRUE(UsePairs(PairWay::kFaster, true, takes(1.0, 1.0)));
  EXPECT_FALSE(UsePairs(PairWay::kFaster, true, takes(1.01, 1.0)));
  EXPECT_EQ(measured, 3);
  // A way that is wanted is taken unmeasured, and a processor without the instruction has one.
  EXPECT_TRUE(UsePairs(PairWay::kInstruction, true, takes(2, 1)));
  EXPECT_FALSE(UsePairs(PairWay::kFloats, true, takes(1, 2)));
  EXPECT_FALSE(UsePairs(PairWay::kFaster, false, takes(1, 2)));
  EXPECT_FALSE(UsePairs(PairWay::kInstruction, false, takes(1, 2)));
  EXPECT_EQ(measured, 3);
}

TEST(GemmBf16, BothWaysAreMeasured) {
  if (!HasPairs()) GTEST_SKIP() << "this processor, or FSDP_TRAIN_ISA, has no AVX512_BF16";
  const PairTimes times = MeasurePairs();
  for (const double seconds : {times.instruction, times.floats}) {
    EXPECT_GT(seconds, 0);
    EXPECT_TRUE(std::isfinite(seconds));
  }
}

TEST(GemmBf16, RandomShapes) {
  Random random(1, DType::kFloat32);
  for (int i = 0; i < 300; ++i) {
    const auto draw = [&] { return random.Integer(0, 1) == 1; };
    const auto dtype = [&] { return kDTypes[random.Integer(0, 2)]; };
    const bool few = i % 5 == 0, both = i % 2 == 0;  // Few rows; both factors bf16.
    Check({.m = random.Integer(1, few ? 16 : 70),
           .n = random.Integer(1, 130),
           .k = random.Integer(1, i % 3 == 0 ? 1100 : 130),
           .ta = draw(),
           .tb = draw(),
           .a = both ? DType::kBFloat16 : dtype(),
           .b = both ? DType::kBFloat16 : dtype(),
           .c = dtype(),
           .alpha = draw() ? 1.0f : 0.5f,
           .beta = draw() ? 1.0f : 0.0f,
           .gap = random.Integer(0, 3),
           .bias = draw()},
          /*threads=*/1 + i % 3, /*seed=*/i);
  }
}

// More rows and columns than are packed, or summed, at a time.
TEST(GemmBf16, ManyBlocks) {
  for (const bool transposed : {false, true}) {
    for (const DType c : kDTypes) {
      Check({2100, 50, 17, transposed, !transposed, DType::kBFloat16, DType::kBFloat16, c, 1, 1, 1,
             true},
            1, 2);
      Check({20, 1100, 600, transposed, transposed, DType::kBFloat16, DType::kBFloat16, c, 1, 0, 0,
             false},
            2, 3);
    }
  }
}

// An error of finish() ends the product and reaches its caller.
TEST(GemmBf16, FinishMayThrow) {
  Random random(5, DType::kFloat32);
  const Stored a(random, DType::kBFloat16, 40, 40, 0), b(random, DType::kBFloat16, 40, 40, 0);
  std::vector<float> c(40 * 40);
  ThreadPool pool(1, /*spin=*/false);
  int calls = 0;
  const auto fail = [&](const GemmTile&) {
    if (++calls == 2) throw std::runtime_error("no");
  };
  EXPECT_THROW(
      Gemm(pool, 40, 40, 40, a.Operand(false), b.Operand(false), {c.data(), 40}, {.finish = fail}),
      std::runtime_error);
  EXPECT_EQ(calls, 2);
}

// Floats are read where they lie here; other factors must not be.
TEST(GemmBf16, FewTilesOfLongSums) {
  for (const DType a : kDTypes) {
    for (const DType b : kDTypes) {
      Check({10, 10, 1100, true, false, a, b, DType::kFloat32, 1, 1, 0, false}, 2, 4);
    }
  }
}

// The one step that differs between instruction sets, in more cases than are tried at each start.
TEST(GemmBf16, AnInstructionIsTwoFusedMultiplyAdds) {
  if (!HasPairs()) GTEST_SKIP() << "this processor, or FSDP_TRAIN_ISA, has no AVX512_BF16";
  const FlushedSubnormals flushed;
  Random random(4, DType::kFloat32);
  const auto bits = [&] { return static_cast<uint32_t>(random.Integer(0, 0xffffffff)); };
  for (int i = 0; i < 100000; ++i) {
    uint32_t a[16], b[16];
    float sums[16], want[16];
    for (int lane = 0; lane < 16; ++lane) {
      a[lane] = bits();
      b[lane] = bits();
      sums[lane] = std::bit_cast<float>(bits());
      want[lane] = AddPair(sums[lane], a[lane], b[lane]);
    }
    AddPairsBf16(a, b, sums);
    for (int lane = 0; lane < 16; ++lane) {
      ASSERT_TRUE(Bits(sums[lane]) == Bits(want[lane]) ||
                  (std::isnan(sums[lane]) && std::isnan(want[lane])))
          << std::hex << a[lane] << " " << b[lane] << " gives " << Bits(sums[lane]) << ", not "
          << Bits(want[lane]);
    }
  }
}

}  // namespace
}  // namespace fsdp
