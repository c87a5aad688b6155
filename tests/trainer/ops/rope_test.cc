#include "trainer/ops/rope.h"

#include <cmath>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

Values Frequencies(int64_t half) {
  Values f;
  for (int64_t i = 0; i < half; ++i) {
    f.push_back(std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half)));
  }
  return f;
}

struct Case {
  int64_t batch, seq, all, first, count, half;

  Shape Tensor() const { return {batch, seq, all, 2 * half}; }
};
constexpr Case kCases[] = {
    {1, 1, 1, 0, 1, 1}, {2, 5, 4, 0, 3, 7}, {1, 9, 6, 2, 3, 16}, {1, 2, 3, 1, 2, 12}};

// Documents of 4 tokens.
Values Positions(const Case& c) {
  Values p;
  for (int64_t i = 0; i < c.batch * c.seq; ++i) p.push_back(static_cast<double>(i % c.seq % 4));
  return p;
}

Values Oracle(const Case& c, const Values& x, double factor) {
  Values y = x;
  const Values f = Frequencies(c.half), positions = Positions(c);
  for (int64_t t = 0; t < c.batch * c.seq; ++t) {
    for (int64_t h = c.first; h < c.first + c.count; ++h) {
      const int64_t at = (t * c.all + h) * 2 * c.half;
      for (int64_t i = 0; i < c.half; ++i) {
        const double a = positions[t] * f[i], first = x[at + i], second = x[at + c.half + i];
        y[at + i] = factor * (first * std::cos(a) - second * std::sin(a));
        y[at + c.half + i] = factor * (second * std::cos(a) + first * std::sin(a));
      }
    }
  }
  return y;
}

class RopeTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(RopeTest, kF32, kBF16, kF16);

// Every entry is the float64 value, rounded once: also at angles far above 2 pi.
TEST_P(RopeTest, TableIsRoundedOnce) {
  const Values f = {1.0, 0.3, 1e-4};
  const int64_t positions = 5000;
  const View table = Output({positions, 2, 3}, kF32);
  Run([&](Stream& stream) { RopeTable(stream, f, 1.25, table); });
  const Values got = Get(table);
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < 3; ++i) {
      const double a = static_cast<double>(p) * f[i];
      ASSERT_EQ(got[(p * 2) * 3 + i], RoundTo(kF32, 1.25 * std::cos(a))) << p;
      ASSERT_EQ(got[(p * 2 + 1) * 3 + i], RoundTo(kF32, 1.25 * std::sin(a))) << p;
    }
  }
}

TEST_P(RopeTest, RotatesItsHeadsAlone) {
  for (const Case& c : kCases) {
    for (const double factor : {1.0, 1.25}) {
      const Values values = Random(1, dtype()).Vector(c.Tensor().NumElements());
      const View x = Input(c.Tensor(), values), table = Output({c.seq, 2, c.half}, kF32);
      const View positions = Input({c.batch, c.seq}, Positions(c), DType::kInt32);
      Run([&](Stream& stream) {
        RopeTable(stream, Frequencies(c.half), factor, table);
        Rope(stream, table, positions, RopeDirection::kForward, {x, c.first, c.count});
      });
      EXPECT_TRUE(AllNear(Get(x), Oracle(c, values, factor), Tolerance(dtype(), 2)));
      Clear();
    }
  }
}

TEST_P(RopeTest, IsThatOfFp32RoundedOnce) {
  const Case c{1, 9, 3, 1, 2, 700};
  const Values values = Random(4, dtype()).Vector(c.Tensor().NumElements());
  const auto run = [&](DType dtype) {
    const View x = Input(c.Tensor(), values, dtype), table = Output({c.seq, 2, c.half}, kF32);
    const View positions = Input({c.batch, c.seq}, Positions(c), DType::kInt32);
    Run([&](Stream& stream) {
      RopeTable(stream, Frequencies(c.half), 1.25, table);
      Rope(stream, table, positions, RopeDirection::kForward, {x, c.first, c.count});
    });
    return Get(x);
  };
  EXPECT_EQ(run(dtype()), RoundTo(dtype(), run(kF32)));
}

TEST_P(RopeTest, GradientMatchesFiniteDifferences) {
  for (const Case& c : kCases) {
    Random random(2, dtype());
    const Values values = random.Vector(c.Tensor().NumElements());
    const Values gradient = random.Vector(values.size());
    const Values want =
        NumericGradient([&](const Values& v) { return Dot(gradient, Oracle(c, v, 1.25)); }, values);
    const View dx = Input(c.Tensor(), gradient), table = Output({c.seq, 2, c.half}, kF32);
    const View positions = Input({c.batch, c.seq}, Positions(c), DType::kInt32);
    Run([&](Stream& stream) {
      RopeTable(stream, Frequencies(c.half), 1.25, table);
      Rope(stream, table, positions, RopeDirection::kBackward, {dx, c.first, c.count});
    });
    EXPECT_TRUE(AllNear(Get(dx), want, Tolerance(dtype(), 2)));
    Clear();
  }
}

TEST_P(RopeTest, RefusesWrongArguments) {
  const View x = Output({1, 3, 2, 4}), table = Output({5, 2, 2}, kF32);
  const View positions = Output({1, 3}, DType::kInt32);
  const auto rope = [&](const View& table, const View& positions, const Heads& x) {
    return [=](Stream& s) { Rope(s, table, positions, RopeDirection::kForward, x); };
  };
  ExpectRefused(rope(table, positions, {x, 1, 2}), "[rope] x is heads 1 to 3");
  ExpectRefused(rope(table, Output({3}, DType::kInt32), {x, 0, 2}), "positions is int32 [3]");
  ExpectRefused(rope(Output({5, 2, 4}, kF32), positions, {x, 0, 2}), "table is fp32 [5, 2, 4]");
  ExpectRefused(rope(table, positions, {Output({1, 3, 2, 5}), 0, 2}), "head_dim is odd");
  ExpectRefused(rope(View(x.data, kF32, {1, 2, 2}), positions, {x, 0, 2}), "x and table overlap");
  ExpectRefused(
      [&](Stream& s) {
        RopeTable(s, {1, 2, 3}, 1, table);
      },
      "[rope_table] table is fp32 [5, 2, 2], want fp32 [5, 2, 3]");
  ExpectDTypesRefused("rope", [&](Stream& s) {
    const View table = Output({5, 2, 2}, kF32), positions = Output({1, 3}, DType::kInt32);
    Rope(s, table, positions, RopeDirection::kForward, {Output({1, 3, 2, 4}), 0, 2});
  });
  ExpectDTypesRefused("rope_table", [&](Stream& s) {
    RopeTable(s, {1, 2}, 1, Output({5, 2, 2}, kF32));
  });
}

TEST_P(RopeTest, BitsDoNotDependOnThreads) {
  const Case c{2, 31, 5, 0, 4, 12};
  const View x = Input(c.Tensor(), Random(3, dtype()).Vector(c.Tensor().NumElements()));
  const View positions = Input({c.batch, c.seq}, Positions(c), DType::kInt32);
  const View table = Output({c.seq, 2, c.half}, kF32);
  ExpectSameBits(
      [&](Stream& stream) {
        RopeTable(stream, Frequencies(c.half), 1, table);
        Rope(stream, table, positions, RopeDirection::kForward, {x, c.first, c.count});
      },
      {x, table});
}

}  // namespace
}  // namespace fsdp
