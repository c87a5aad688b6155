#include "trainer/ops/feature_vectors.h"

#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

struct Vectors {
  int64_t samples, n, cols;

  int64_t rows() const { return samples * n; }
  int64_t size() const { return rows() * cols; }
  int64_t pairs() const { return n * (n - 1) / 2; }
};

const Vectors kShapes[] = {{1, 2, 1},   {3, 4, 5},   {2, 9, 67},
                           {5, 17, 32}, {2, 33, 19}, {1, 2, 1031}};

Values DotsOracle(const Vectors& c, double scale, const Values& x) {
  Values y;
  for (int64_t s = 0; s < c.samples; ++s) {
    for (int64_t i = 0; i < c.n; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < c.cols; ++k) {
          dot += x[(s * c.n + i) * c.cols + k] * x[(s * c.n + j) * c.cols + k];
        }
        y.push_back(scale * dot);
      }
    }
  }
  return y;
}

class FeatureVectorsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(FeatureVectorsTest, kF32, kBF16, kF16);

TEST_P(FeatureVectorsTest, ColumnsAreJoinedAndSplit) {
  struct Case {
    int64_t rows, p, q;
  };
  for (const Case& c : {Case{1, 1, 1}, {5, 3, 8}, {7, 64, 32}, {2, 517, 1031}, {3, 2, 600}}) {
    const Values a = Random(1, dtype()).Vector(c.rows * c.p);
    const Values b = Random(2, dtype()).Vector(c.rows * c.q);
    Values want;
    for (int64_t r = 0; r < c.rows; ++r) {
      want.insert(want.end(), a.begin() + r * c.p, a.begin() + (r + 1) * c.p);
      want.insert(want.end(), b.begin() + r * c.q, b.begin() + (r + 1) * c.q);
    }
    const View va = Input({c.rows, c.p}, a), vb = Input({c.rows, c.q}, b);
    const View y = Output({c.rows, c.p + c.q});
    const View back_a = Output({c.rows, c.p}), back_b = Output({c.rows, c.q});
    Run([&](Stream& s) {
      JoinColumns(s, va, vb, y);
      SplitColumns(s, y, back_a, back_b);
    });
    EXPECT_EQ(Get(y), want);
    EXPECT_EQ(Get(back_a), a);
    EXPECT_EQ(Get(back_b), b);
    Clear();
  }
}

TEST_P(FeatureVectorsTest, VectorsAreSwapped) {
  for (const Vectors& c : kShapes) {
    const Values x = Random(3, dtype()).Vector(c.size());
    Values want(x.size());
    for (int64_t s = 0; s < c.samples; ++s) {
      for (int64_t i = 0; i < c.n; ++i) {
        for (int64_t j = 0; j < c.cols; ++j) {
          want[(s * c.cols + j) * c.n + i] = x[(s * c.n + i) * c.cols + j];
        }
      }
    }
    const View vx = Input({c.rows(), c.cols}, x), y = Output({c.samples * c.cols, c.n});
    const View back = Output({c.rows(), c.cols});
    Run([&](Stream& s) {
      SwapVectors(s, vx, c.samples, y);
      SwapVectors(s, y, c.samples, back);
    });
    EXPECT_EQ(Get(y), want);
    EXPECT_EQ(Get(back), x);
    Clear();
  }
}

TEST_P(FeatureVectorsTest, PairsAreMultiplied) {
  for (const Vectors& c : kShapes) {
    const float scale = 0.375f;
    const Values x = Random(4, dtype()).Vector(c.size());
    const View vx = Input({c.rows(), c.cols}, x), y = Output({c.samples, c.pairs()});
    Run([&](Stream& s) { PairDotsForward(s, vx, scale, y); });
    EXPECT_TRUE(AllNear(Get(y), DotsOracle(c, scale, x), Tolerance(dtype(), c.cols)));
    EXPECT_EQ(cost().flops, 2.0 * static_cast<double>(c.samples * c.pairs() * c.cols));
    Clear();
  }
}

TEST_P(FeatureVectorsTest, GradientOfPairsMatchesFiniteDifferences) {
  for (const Vectors& c : {Vectors{1, 2, 1}, {3, 4, 5}, {2, 6, 19}, {1, 18, 3}}) {
    const float scale = 0.375f;
    const Values x = Random(5, dtype()).Vector(c.size());
    const Values dy = Random(6, dtype()).Vector(c.samples * c.pairs());
    const View vx = Input({c.rows(), c.cols}, x), vdy = Input({c.samples, c.pairs()}, dy);
    const View dx = Output({c.rows(), c.cols});
    Run([&](Stream& s) { PairDotsBackward(s, vx, scale, vdy, dx); });
    const Values want =
        NumericGradient([&](const Values& v) { return Dot(dy, DotsOracle(c, scale, v)); }, x);
    EXPECT_TRUE(AllNear(Get(dx), want, Tolerance(dtype(), c.n)));
    Clear();
  }
}

TEST_P(FeatureVectorsTest, ElementsAreMultiplied) {
  for (const int64_t n : {1, 7, 600, 1031}) {
    const Values a = Random(7, dtype()).Vector(n), b = Random(8, dtype()).Vector(n);
    const Values dy = Random(9, dtype()).Vector(n);
    Values product, to_a, to_b;
    for (int64_t i = 0; i < n; ++i) {
      product.push_back(a[i] * b[i]);
      to_a.push_back(dy[i] * b[i]);
      to_b.push_back(dy[i] * a[i]);
    }
    const View va = Input({n}, a), vb = Input({1, n}, b), vdy = Input({n, 1}, dy);
    const View y = Output({n}), da = Output({n}), db = Output({1, n});
    Run([&](Stream& s) {
      MultiplyForward(s, va, vb, y);
      MultiplyBackward(s, va, vb, vdy, da, db);
    });
    EXPECT_EQ(Get(y), RoundTo(dtype(), product));
    EXPECT_EQ(Get(da), RoundTo(dtype(), to_a));
    EXPECT_EQ(Get(db), RoundTo(dtype(), to_b));
    Clear();
  }
}

TEST_P(FeatureVectorsTest, RefusesWrongArguments) {
  const View x = Output({6, 4}), y = Output({2, 3}), other = Output({6, 4});
  const View joined = Output({6, 7}), narrow = Output({6, 3});
  ExpectRefused([&](Stream& s) { JoinColumns(s, x, x, joined); },
                "[join_columns] b is $T [6, 4], want $T [6, 3]");
  ExpectRefused(
      [&](Stream& s) {
        SplitColumns(s, joined, other, joined.Slice(0, 18).Reshape({6, 3}));
      },
      "[split_columns] y and b overlap");
  ExpectRefused([&](Stream& s) { SwapVectors(s, x, 4, other); },
                "[swap_vectors] x has 6 rows, for 4 samples");
  ExpectRefused([&](Stream& s) { SwapVectors(s, x, 2, other); },
                "[swap_vectors] y is $T [6, 4], want $T [8, 3]");
  ExpectRefused(
      [&](Stream& s) {
        PairDotsForward(s, x, 1, Output({2, 4}));
      },
      "[pair_dots_forward] y is $T [2, 4], want $T [2, 3]");
  ExpectRefused(
      [&](Stream& s) {
        PairDotsForward(s, x, 1, Output({6, 0}));
      },
      "[pair_dots_forward] x has 6 rows, for pairs of 6 samples");
  ExpectRefused([&](Stream& s) { PairDotsBackward(s, x, 1, y, x); },
                "[pair_dots_backward] dx and x overlap");
  ExpectRefused([&](Stream& s) { MultiplyForward(s, x, narrow, other); },
                "[multiply_forward] b is $T [6, 3]");
  ExpectRefused([&](Stream& s) { MultiplyBackward(s, x, other, Output({24}), x, Output({24})); },
                "[multiply_backward] da and a overlap");
  ExpectDTypesRefused("join_columns", [&](Stream& s) {
    JoinColumns(s, Output({6, 4}), Output({6, 3}), Output({6, 7}));
  });
  ExpectDTypesRefused("split_columns", [&](Stream& s) {
    SplitColumns(s, Output({6, 7}), Output({6, 4}), Output({6, 3}));
  });
  ExpectDTypesRefused("swap_vectors", [&](Stream& s) {
    SwapVectors(s, Output({6, 4}), 2, Output({8, 3}));
  });
  ExpectDTypesRefused("pair_dots_forward", [&](Stream& s) {
    PairDotsForward(s, Output({6, 4}), 1, Output({2, 3}));
  });
  ExpectDTypesRefused("pair_dots_backward", [&](Stream& s) {
    PairDotsBackward(s, Output({6, 4}), 1, Output({2, 3}), Output({6, 4}));
  });
  ExpectDTypesRefused("multiply_forward", [&](Stream& s) {
    MultiplyForward(s, Output({4}), Output({4}), Output({4}));
  });
  ExpectDTypesRefused("multiply_backward", [&](Stream& s) {
    MultiplyBackward(s, Output({4}), Output({4}), Output({4}), Output({4}), Output({4}));
  });
}

}  // namespace
}  // namespace fsdp
