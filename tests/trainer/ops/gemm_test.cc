#include "trainer/ops/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

// A stored matrix with a stride beyond its rows. What lies between rows is NaN: read by mistake it
// spoils the result, and it must not be written.
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
};
void PrintTo(const Problem& p, std::ostream* out) {
  *out << p.m << "x" << p.n << "x" << p.k << " ta " << p.ta << " tb " << p.tb << " alpha "
       << p.alpha << " beta " << p.beta << " gap " << p.gap;
}

void Check(ThreadPool& pool, const Problem& p, uint64_t seed) {
  SCOPED_TRACE(::testing::PrintToString(p) + " threads " + std::to_string(pool.size()));
  Random random(seed);
  const Stored a(random, p.ta ? p.k : p.m, p.ta ? p.m : p.k, p.gap);
  const Stored b(random, p.tb ? p.n : p.k, p.tb ? p.k : p.n, p.gap);
  Stored c(random, p.m, p.n, p.gap);
  std::vector<double> want;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < p.k; ++l) sum += a.At(i, l, p.ta) * b.At(l, j, p.tb);
      want.push_back(p.alpha * sum + p.beta * c.values[i * c.stride + j]);
    }
  }
  if (p.beta == 0) std::fill(c.values.begin(), c.values.end(), NAN);
  Stored again = c;
  const auto run = [&](Stored& out) {
    Gemm(pool, p.m, p.n, p.k, p.alpha, {a.values.data(), a.stride, p.ta},
         {b.values.data(), b.stride, p.tb}, p.beta, out.values.data(), out.stride);
  };
  run(c);
  EXPECT_TRUE(AllNear(c.Dense(), want, Tolerance(DType::kFloat32, p.k)));
  EXPECT_EQ(c.GapsWritten(), 0);
  run(again);
  EXPECT_EQ(c.Dense(), again.Dense());
}

TEST(Gemm, RandomShapes) {
  Random random(1);
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads, /*spin=*/false);
    for (int i = 0; i < 60; ++i) {
      constexpr float kBetas[] = {0, 1, -0.75f};
      Check(pool,
            {random.Integer(1, 130), random.Integer(1, 130), random.Integer(1, 130),
             random.Integer(0, 1) == 1, random.Integer(0, 1) == 1,
             random.Integer(0, 1) == 1 ? 1.0f : 0.5f, kBetas[random.Integer(0, 2)],
             random.Integer(0, 3)},
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

TEST(Gemm, NothingToAdd) {
  ThreadPool pool(2, /*spin=*/false);
  std::vector<float> c = {1, 2, 3, 4};
  Gemm(pool, 2, 2, 0, 1, {nullptr, 1}, {nullptr, 2}, 0.5f, c.data(), 2);
  EXPECT_EQ(c, (std::vector<float>{0.5f, 1, 1.5f, 2}));
  Gemm(pool, 2, 2, 0, 1, {nullptr, 1}, {nullptr, 2}, 0, c.data(), 2);
  EXPECT_EQ(c, std::vector<float>(4));
  Gemm(pool, 0, 5, 3, 1, {nullptr, 3}, {nullptr, 5}, 0, nullptr, 5);
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
        const GemmTile tile = GemmPart(m, n, k, parts, part);
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

// OpenBLAS's serial build keeps its packing buffers in one table: calls from several threads must
// not be given the same one.
TEST(GemmSerial, ManyThreadsAtOnce) {
  constexpr int64_t kSize = 96;
  Random random(5);
  const Stored a(random, kSize, kSize, 0), b(random, kSize, kSize, 0);
  const auto product = [&](std::vector<float>& c) {
    GemmSerial(kSize, kSize, kSize, 1, {a.values.data(), kSize}, {b.values.data(), kSize}, 0,
               c.data(), kSize);
  };
  std::vector<float> want(kSize * kSize);
  product(want);
  ThreadPool pool(8, /*spin=*/false);
  std::vector<int> wrong(pool.size());
  pool.Run([&](int t) {
    std::vector<float> c(kSize * kSize);
    for (int i = 0; i < 50; ++i) {
      product(c);
      wrong[t] += c != want;
    }
  });
  EXPECT_EQ(wrong, std::vector<int>(pool.size()));
}

// Many short products at once: what they share must be locked. Whole numbers, so one result. The
// transposed factor keeps OpenBLAS's SkylakeX kernels from a short cut without a buffer.
TEST(Gemm, ThreadsDoNotShareBuffers) {
  constexpr int64_t kN = 90, kK = 30;
  ThreadPool pool(8, /*spin=*/false);
  std::vector<int> wrong(pool.size());
  pool.Run([&](int t) {
    const int64_t m = 2 + 5 * t;  // Of different length, so that no two threads march in step.
    std::vector<float> a(kK * m), b(kK * kN), want(m * kN, 0), c(m * kN);
    for (int64_t i = 0; i < kK * m; ++i) a[i] = static_cast<float>((i * 7 + t) % 5 - 2);
    for (int64_t i = 0; i < kK * kN; ++i) b[i] = static_cast<float>((i * 3 + t) % 7 - 3);
    for (int64_t k = 0; k < kK; ++k) {
      for (int64_t i = 0; i < m * kN; ++i) want[i] += a[k * m + i / kN] * b[k * kN + i % kN];
    }
    for (int i = 0; i < 15000; ++i) {
      GemmSerial(m, kN, kK, 1, {a.data(), m, /*transposed=*/true}, {b.data(), kN}, 0, c.data(), kN);
      wrong[t] += c != want;
    }
  });
  EXPECT_EQ(wrong, std::vector<int>(pool.size()));
}

// A fall-back for an unknown CPU model would cost a factor of fifteen and no other test would fail.
TEST(Gemm, KernelsSuitTheCpu) {
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_STREQ(GemmKernels(), std::getenv("OPENBLAS_CORETYPE"));
    EXPECT_STRNE(GemmKernels(), "Prescott");
  }
}

}  // namespace
}  // namespace fsdp
