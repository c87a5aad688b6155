#include "trainer/ops/cpu/gemm/gemm.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/numeric.h"
#include "trainer/ops/cpu/gemm/gemm_kernels.h"
#include "trainer/ops/cpu/kinds.h"

namespace fsdp {
namespace {

// A stored matrix with a stride beyond its rows. Elements between rows are NaN: read by mistake
// they spoil the result, and they must not be written.
struct Stored {
  Stored(Random& random, int64_t rows, int64_t cols, int64_t gap)
      : rows(rows), cols(cols), stride(cols + gap), values(rows * stride, NAN) {
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> row = random.Vector(cols);
      for (int64_t c = 0; c < cols; ++c) values[r * stride + c] = static_cast<float>(row[c]);
    }
  }
  double At(int64_t r, int64_t c, bool transposed) const {
    return transposed ? values[c * stride + r] : values[r * stride + c];
  }
  std::vector<double> Dense() const {
    std::vector<double> out;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) out.push_back(values[r * stride + c]);
    }
    return out;
  }
  int64_t GapsWritten() const {
    int64_t written = 0;
    for (int64_t i = 0; i < rows * stride; ++i) {
      written += i % stride >= cols && !std::isnan(values[i]);
    }
    return written;
  }

  int64_t rows, cols, stride;
  std::vector<float> values;
};

struct Problem {
  int64_t m, n, k;
  bool ta, tb;
  float alpha, beta;
  int64_t gap;
  bool bias = false, added = false;
};
void PrintTo(const Problem& p, std::ostream* out) {
  *out << p.m << "x" << p.n << "x" << p.k << " ta " << p.ta << " tb " << p.tb << " alpha "
       << p.alpha << " beta " << p.beta << " gap " << p.gap << " bias " << p.bias << " added "
       << p.added;
}

void Check(ThreadPool& pool, const Problem& p, uint64_t seed) {
  SCOPED_TRACE(::testing::PrintToString(p) + " threads " + std::to_string(pool.size()));
  Random random(seed, DType::kFloat32);
  const Stored a(random, p.ta ? p.k : p.m, p.ta ? p.m : p.k, p.gap);
  const Stored b(random, p.tb ? p.n : p.k, p.tb ? p.k : p.n, p.gap);
  const Stored added(random, p.m, p.n, p.gap);
  Stored c(random, p.m, p.n, p.gap);
  const std::vector<double> bias_values = random.Vector(p.n);
  const std::vector<float> bias(bias_values.begin(), bias_values.end());
  std::vector<double> want;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < p.k; ++l) sum += a.At(i, l, p.ta) * b.At(l, j, p.tb);
      want.push_back(p.alpha * sum + p.beta * c.values[i * c.stride + j] + (p.bias ? bias[j] : 0) +
                     (p.added ? added.At(i, j, false) : 0));
    }
  }
  if (p.beta == 0) std::fill(c.values.begin(), c.values.end(), NAN);
  Stored again = c;
  const auto run = [&](Stored& out) {
    Gemm(pool, p.m, p.n, p.k, {a.values.data(), a.stride, p.ta}, {b.values.data(), b.stride, p.tb},
         {out.values.data(), out.stride},
         {.alpha = p.alpha,
          .beta = p.beta,
          .bias = p.bias ? bias.data() : nullptr,
          .added = p.added ? added.values.data() : nullptr});
  };
  run(c);
  EXPECT_TRUE(AllNear(c.Dense(), want, Tolerance(DType::kFloat32, p.k)));
  EXPECT_EQ(c.GapsWritten(), 0);
  run(again);
  EXPECT_EQ(c.Dense(), again.Dense());
}

TEST(Gemm, RandomShapes) {
  Random random(1, DType::kFloat32);
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads, /*spin=*/false);
    for (int i = 0; i < 60; ++i) {
      constexpr float kBetas[] = {0, 1, -0.75f};
      Check(pool,
            {random.Integer(1, 130), random.Integer(1, 130), random.Integer(1, 130),
             random.Integer(0, 1) == 1, random.Integer(0, 1) == 1,
             random.Integer(0, 1) == 1 ? 1.0f : 0.5f, kBetas[random.Integer(0, 2)],
             random.Integer(0, 3), random.Integer(0, 1) == 1, random.Integer(0, 1) == 1},
            /*seed=*/i);
    }
  }
}

// Long enough in each direction to be split by rows, by columns and in a grid.
TEST(Gemm, SplitShapes) {
  for (const int threads : {2, 3, 4}) {
    ThreadPool pool(threads, /*spin=*/false);
    for (const bool transposed : {false, true}) {
      Check(pool, {700, 31, 100, transposed, !transposed, 1, 1, 1}, 2);
      Check(pool, {13, 1021, 160, transposed, transposed, 1, 0, 0}, 3);
      Check(pool, {150, 161, 90, !transposed, transposed, 2, 0, 5}, 4);
    }
  }
}

// More than one block of k, of columns and of packed rows.
TEST(Gemm, ManyBlocks) {
  ThreadPool pool(1, /*spin=*/false);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      Check(pool, {20, 500, 1100, ta, tb, 1, 1, 1, true, true}, 6);
      Check(pool, {2100, 50, 17, ta, tb, 1, 0, 0, false}, 7);
    }
  }
}

// Rows of C that end within a vector, with and without room between them.
TEST(Gemm, NarrowResults) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads, /*spin=*/false);
    for (int64_t n = 1; n <= 49; n += n < 18 ? 1 : 15) {
      for (int bits = 0; bits < 32; ++bits) {
        const bool ta = bits & 1, tb = bits & 2, gap = bits & 4, added = bits & 8, more = bits & 16;
        if (more && n % 8 != 2) continue;  // Enough for two threads takes a while.
        Check(pool,
              {more ? 4100 : 21, n, more ? 10 : 530, ta, tb, 1, added ? 0.0f : 1.0f, gap, !added,
               added},
              /*seed=*/bits);
      }
    }
  }
}

// Floats whose last one is the last that can be touched.
class FloatsBeforeAGap {
 public:
  explicit FloatsBeforeAGap(const std::vector<double>& values)
      : pages_((values.size() * sizeof(float) + kPage - 1) / kPage + 1),
        memory_(static_cast<char*>(mmap(nullptr, pages_ * kPage, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        size_(values.size()) {
    mprotect(memory_ + (pages_ - 1) * kPage, kPage, PROT_NONE);
    std::copy(values.begin(), values.end(), data());
  }
  FloatsBeforeAGap(const FloatsBeforeAGap&) = delete;
  FloatsBeforeAGap& operator=(const FloatsBeforeAGap&) = delete;
  ~FloatsBeforeAGap() { munmap(memory_, pages_ * kPage); }

  float* data() const { return reinterpret_cast<float*>(memory_ + (pages_ - 1) * kPage) - size_; }

 private:
  static constexpr size_t kPage = 4096;

  const size_t pages_;
  char* const memory_;
  const size_t size_;
};

TEST(Gemm, TouchesNothingBehindItsMatrices) {
  ThreadPool pool(1, /*spin=*/false);
  Random random(14, DType::kFloat32);
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{10, 10, 530}, {3, 1, 1100}, {41, 10, 9}}) {
    for (int bits = 0; bits < 4; ++bits) {
      const bool ta = bits & 1, tb = bits & 2;
      const std::vector<double> left = random.Vector(m * k), right = random.Vector(k * n);
      const FloatsBeforeAGap a(left), b(right), added(random.Vector(m * n)),
          c(std::vector<double>(m * n));
      Gemm(pool, m, n, k, {a.data(), ta ? m : k, ta}, {b.data(), tb ? k : n, tb}, {c.data(), n},
           {.added = added.data()});
      double want = added.data()[m * n - 1];
      for (int64_t l = 0; l < k; ++l) {
        want += static_cast<double>(a.data()[ta ? l * m + m - 1 : (m - 1) * k + l]) *
                b.data()[tb ? (n - 1) * k + l : l * n + n - 1];
      }
      EXPECT_NEAR(c.data()[m * n - 1], want, 1e-3) << m << "x" << n << "x" << k << " " << ta << tb;
    }
  }
}

TEST(Gemm, NothingToAdd) {
  ThreadPool pool(2, /*spin=*/false);
  std::vector<float> c = {1, 2, 3, 4};
  Gemm(pool, 2, 2, 0, {nullptr, 1}, {nullptr, 2}, {c.data(), 2}, {.beta = 0.5f});
  EXPECT_EQ(c, (std::vector<float>{0.5f, 1, 1.5f, 2}));
  Gemm(pool, 2, 2, 0, {nullptr, 1}, {nullptr, 2}, {c.data(), 2});
  EXPECT_EQ(c, std::vector<float>(4));
  Gemm(pool, 0, 5, 3, {nullptr, 3}, {nullptr, 5}, {nullptr, 5});
}

// Rows of one product, by itself and among others, split among any number of threads: the same
// bits, because an element's sum knows nothing of its neighbours.
TEST(Gemm, BitsBelongToTheElement) {
  constexpr int64_t kM = 150, kN = 210, kK = 1000;
  Random random(11, DType::kFloat32);
  for (int bits = 0; bits < 8; ++bits) {
    const bool ta = bits & 1, tb = bits & 2, plain = bits & 4;
    SCOPED_TRACE(bits);
    const Stored a(random, ta ? kK : kM, ta ? kM : kK, 0);
    const Stored b(random, tb ? kN : kK, tb ? kK : kN, 0);
    const std::vector<double> bias_values = random.Vector(kN);
    const std::vector<float> bias(bias_values.begin(), bias_values.end());
    const auto product = [&](int threads, int64_t row, int64_t rows, int64_t col, int64_t cols) {
      ThreadPool pool(threads, /*spin=*/false);
      std::vector<float> c(rows * cols, 0.3f);
      GemmOptions options;
      if (!plain) options = {.alpha = 0.7f, .beta = 0.9f, .bias = bias.data() + col};
      Gemm(pool, rows, cols, kK, {a.values.data() + row * (ta ? 1 : a.stride), a.stride, ta},
           {b.values.data() + col * (tb ? b.stride : 1), b.stride, tb}, {c.data(), cols}, options);
      return c;
    };
    const std::vector<float> whole = product(1, 0, kM, 0, kN);
    for (const int threads : {2, 3, 5}) EXPECT_EQ(product(threads, 0, kM, 0, kN), whole);
    for (const int64_t rows : {1, 5, 16, 17}) {
      const std::vector<float> part = product(1, 3, rows, 7, 100);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < 100; ++j) {
          ASSERT_EQ(part[i * 100 + j], whole[(i + 3) * kN + j + 7]) << i << " " << j;
        }
      }
    }
  }
}

// Each tile is finished once, after all of it is there, and nothing is written afterwards.
TEST(Gemm, FinishSeesFinalValues) {
  constexpr int64_t kK = 1100;
  Random random(12, DType::kFloat32);
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{3, 500}, {40, 500}, {40, 10}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const Stored a(random, ta ? kK : m, ta ? m : kK, 0);
        const Stored b(random, tb ? n : kK, tb ? kK : n, 0);
        ThreadPool pool(2, /*spin=*/false);
        std::vector<float> want(m * n), c(m * n), seen(m * n);
        const GemmOperand left{a.values.data(), a.stride, ta}, right{b.values.data(), b.stride, tb};
        Gemm(pool, m, n, kK, left, right, {want.data(), n});
        std::vector<int> calls(m * n);
        Gemm(pool, m, n, kK, left, right, {c.data(), n}, {.finish = [&](const GemmTile& tile) {
               for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
                 for (int64_t j = tile.col; j < tile.col + tile.cols; ++j) {
                   ++calls[i * n + j];
                   seen[i * n + j] = std::exchange(c[i * n + j], 7);
                 }
               }
             }});
        EXPECT_EQ(seen, want) << ta << tb;
        EXPECT_EQ(calls, std::vector<int>(m * n, 1));
        EXPECT_EQ(c, std::vector<float>(m * n, 7));
      }
    }
  }
}

TEST(GemmPart, TilesCoverOnceAndShareFairly) {
  for (const int parts : {1, 2, 3, 4, 6, 8, 16}) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1024, 384, 3072},
                                  {1, 50257, 768},
                                  {50257, 1, 768},
                                  {130, 70, 4096},
                                  {5, 5, 5},
                                  {1000, 1000, 1}}) {
      std::vector<int> owners(m * n);
      int64_t largest = 0;
      for (int part = 0; part < parts; ++part) {
        const GemmGrain grain = m == 130 ? GemmGrain{32, 32, 2e6} : GemmGrain{8, 48, 5e5};
        const GemmTile tile = GemmPart(m, n, k, grain, parts % 2 == 0, parts, part);
        largest = std::max(largest, tile.rows * tile.cols);
        for (int64_t r = tile.row; r < tile.row + tile.rows; ++r) {
          for (int64_t c = tile.col; c < tile.col + tile.cols; ++c) ++owners[r * n + c];
        }
      }
      EXPECT_EQ(owners, std::vector<int>(m * n, 1)) << m << "x" << n << " in " << parts;
      if (m == 1024) {
        EXPECT_LE(largest, m * n / parts * 105 / 100) << parts;
      }
    }
  }
}

// A fall-back would cost a factor of two and no other test would fail.
TEST(Gemm, KernelsSuitTheCpu) {
  const char* wanted = std::getenv("FSDP_TRAIN_ISA");
  if (wanted == nullptr) {
    wanted = "avx2";
    if (__builtin_cpu_supports("avx512f")) wanted = "avx512";
    if (__builtin_cpu_supports("avx512bf16")) wanted = "avx512_bf16";
    if (__builtin_cpu_supports("amx-bf16")) wanted = "amx";
  }
  EXPECT_EQ(ThisIsa().name, wanted) << ThisIsa().refused;
}

// Both kernels on a machine that has both: the same bits.
TEST(Gemm, KernelsGiveTheSameBits) {
  if (!__builtin_cpu_supports("avx512f")) {
    GTEST_SKIP() << "this processor has no AVX-512: there is one kernel to run";
  }
  constexpr int64_t kRows = 3, kColumns = 31, kK = 700;
  Random random(13, DType::kFloat32);
  const std::vector<double> a = random.Vector(kRows * kK), b = random.Vector(kK * 48);
  const std::vector<float> left(a.begin(), a.end()), right(b.begin(), b.end());
  const auto run = [&](const GemmKernels& kernels) {
    // B in tiles as wide as the kernel's.
    std::vector<float> packed((48 / kernels.cols + 1) * kernels.cols * kK), c(kRows * kColumns);
    for (int64_t l = 0; l < kK; ++l) {
      for (int64_t j = 0; j < kColumns; ++j) {
        packed[j / kernels.cols * kernels.cols * kK + l * kernels.cols + j % kernels.cols] =
            right[l * 48 + j];
      }
    }
    GemmStrip s = {};
    constexpr int64_t kStep = sizeof(float);
    s.a = reinterpret_cast<const char*>(left.data());
    s.a_row = kK * kStep;
    s.a_k = kStep;
    s.b = reinterpret_cast<const char*>(packed.data());
    s.b_tile = kernels.cols * kK * kStep;
    s.b_k = kernels.cols * kStep;
    s.c = c.data();
    s.c_row = kColumns;
    s.rows = kRows;
    s.cols = kColumns;
    s.k = kK;
    s.alpha = 0.7f;
    kernels.strip(s);
    s.add = true;
    kernels.strip(s);
    return c;
  };
  EXPECT_EQ(run(kGemmAvx512), run(kGemmAvx2));
}

}  // namespace
}  // namespace fsdp
