#include "trainer/ops/lora.h"

#include <algorithm>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

struct Case {
  int64_t rows, in, out, rank, cols, column;
};
// The last one's rows are of whole packs, which a library's products take.
constexpr Case kCases[] = {{1, 1, 1, 1, 1, 0},
                           {5, 3, 4, 2, 4, 0},
                           {7, 33, 20, 5, 61, 41},
                           {130, 65, 66, 8, 200, 17},
                           {24, 16, 32, 8, 64, 16}};
constexpr float kScale = 1.75f;

struct Inputs {
  Values x, a, b, y, dy;
  Inputs(const Case& c, DType dtype) {
    Random random(7, dtype);
    x = random.Vector(c.rows * c.in);
    a = random.Vector(c.rank * c.in);
    b = random.Vector(c.out * c.rank);
    y = random.Vector(c.rows * c.cols);
    dy = random.Vector(c.rows * c.cols);
  }
};

// y, whole, with the adapter's part added.
Values Oracle(const Case& c, const Values& x, const Values& a, const Values& b, Values y) {
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.out; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < c.rank; ++r) {
        double u = 0;
        for (int64_t k = 0; k < c.in; ++k) u += x[i * c.in + k] * a[r * c.in + k];
        sum += u * b[j * c.rank + r];
      }
      y[i * c.cols + c.column + j] += kScale * sum;
    }
  }
  return y;
}

class LoraTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(LoraTest, kF32, kBF16, kF16);

TEST_P(LoraTest, ForwardMatchesOracle) {
  for (const Case& c : kCases) {
    const Inputs in(c, dtype());
    const View x = Input({c.rows, c.in}, in.x), a = Input({c.rank, c.in}, in.a);
    const View b = Input({c.out, c.rank}, in.b), y = Input({c.rows, c.cols}, in.y);
    const View u = Output({c.rows, c.rank});
    Run([&](Stream& stream) { LoraForward(stream, x, a, b, kScale, c.column, u, y); });
    // A sum of `rank` products, of which one factor is itself a sum.
    const double tolerance = kScale * c.rank * Tolerance(dtype(), c.in + c.rank);
    EXPECT_TRUE(AllNear(Get(y), Oracle(c, in.x, in.a, in.b, in.y), tolerance));
    EXPECT_EQ(cost().flops, 2.0 * c.rows * c.rank * (c.in + c.out));
    Clear();
  }
}

TEST_P(LoraTest, GradientMatchesFiniteDifferences) {
  for (const Case& c : {kCases[0], kCases[1], Case{6, 9, 5, 3, 11, 4}, Case{6, 8, 16, 8, 32, 8}}) {
    const Inputs in(c, dtype());
    const auto loss = [&](const Values& x, const Values& a, const Values& b) {
      return Dot(in.dy, Oracle(c, x, a, b, in.y));
    };
    auto dx = NumericGradient([&](const Values& v) { return loss(v, in.a, in.b); }, in.x);
    auto da = NumericGradient([&](const Values& v) { return loss(in.x, v, in.b); }, in.a);
    auto db = NumericGradient([&](const Values& v) { return loss(in.x, in.a, v); }, in.b);
    for (Values* gradient : {&dx, &da, &db}) {
      for (double& v : *gradient) v += 1;  // All three are added to.
    }

    const View x = Input({c.rows, c.in}, in.x), a = Input({c.rank, c.in}, in.a);
    const View b = Input({c.out, c.rank}, in.b), dy = Input({c.rows, c.cols}, in.dy);
    const View u = Output({c.rows, c.rank}), y = Input({c.rows, c.cols}, in.y);
    Run([&](Stream& stream) { LoraForward(stream, x, a, b, kScale, c.column, u, y); });
    const View got_dx = Accumulated(x.shape), got_da = Accumulated(a.shape);
    const View got_db = Accumulated(b.shape);
    const View workspace =
        Workspace(LoraBackwardWorkspaceBytes(c.rows, c.rank, dtype(), kernel_type()));
    Run([&](Stream& stream) {
      LoraBackward(stream, x, u, a, b, kScale, dy, c.column, got_dx, got_da, got_db, workspace);
    });
    EXPECT_EQ(cost().flops, 4.0 * c.rows * c.rank * (c.in + c.out));
    const double tolerance =
        kScale * std::max({c.rank, c.out, c.rows}) * Tolerance(dtype(), c.in + c.out + c.rows);
    EXPECT_TRUE(AllNear(Get(got_dx), dx, tolerance));
    EXPECT_TRUE(AllNear(Get(got_da), da, tolerance));
    EXPECT_TRUE(AllNear(Get(got_db), db, tolerance));

    const View alone = Accumulated(b.shape), other_dx = Accumulated(x.shape);
    Run([&](Stream& stream) {
      LoraBackward(stream, x, u, a, b, kScale, dy, c.column, other_dx, std::nullopt, alone,
                   workspace);
    });
    EXPECT_EQ(Get(alone), Get(got_db));
    EXPECT_EQ(Get(other_dx), Get(got_dx));
    Clear();
  }
}

// An adapter in fp32 makes products of fp32: u, v and all that is read again are rounded to x's
// dtype. A gradient of whatever dtype is the one in fp32, rounded once.
TEST_P(LoraTest, ParametersHaveDTypesOfTheirOwn) {
  const Case c{1100, 65, 66, 8, 200, 17};
  const Inputs in(c, dtype());
  Random parameters(8, kF32);
  const Values av = parameters.Vector(c.rank * c.in), bv = parameters.Vector(c.out * c.rank);
  struct Results {
    Values u, y, dx, da, db;
  };
  const auto run = [&](DType dtype, DType gradients) {
    const View x = Input({c.rows, c.in}, in.x, dtype), u = Output({c.rows, c.rank}, dtype);
    const View a = Input({c.rank, c.in}, av, kF32), b = Input({c.out, c.rank}, bv, kF32);
    const View y = Input({c.rows, c.cols}, in.y, dtype), dy = Input(y.shape, in.dy, dtype);
    const View dx = Accumulated(x.shape, 1, dtype), da = Accumulated(a.shape, 0, gradients);
    const View db = Accumulated(b.shape, 0, gradients);
    const View workspace =
        Workspace(LoraBackwardWorkspaceBytes(c.rows, c.rank, dtype, kernel_type()));
    Run([&](Stream& s) {
      LoraForward(s, x, a, b, kScale, c.column, u, y);
      LoraBackward(s, x, u, a, b, kScale, dy, c.column, dx, da, db, workspace);
    });
    return Results{Get(u), Get(y), Get(dx), Get(da), Get(db)};
  };
  const Results own = run(dtype(), kF32);
  EXPECT_EQ(own.u, RoundTo(dtype(), run(kF32, kF32).u));
  for (const DType gradients : {kBF16, kF16}) {
    const Results got = run(dtype(), gradients);
    EXPECT_EQ(got.y, own.y);
    EXPECT_EQ(got.dx, own.dx);
    EXPECT_EQ(got.da, RoundTo(gradients, own.da));
    EXPECT_EQ(got.db, RoundTo(gradients, own.db));
  }
}

TEST_P(LoraTest, RefusesWrongArguments) {
  const View x = Output({3, 4}), a = Output({2, 4}), b = Output({5, 2}), u = Output({3, 2});
  const View y = Output({3, 6});
  const View workspace = Workspace(LoraBackwardWorkspaceBytes(3, 2, dtype(), kernel_type()));
  const auto forward = [&](const View& a, const View& b, int64_t column, const View& u) {
    return [=](Stream& s) { LoraForward(s, x, a, b, 1, column, u, y); };
  };
  ExpectRefused(forward(Output({2, 3}), b, 0, u), "[lora_forward] a is $T [2, 3]");
  ExpectRefused(forward(a, Output({5, 3}), 0, u), "b is $T [5, 3]");
  const std::string is_half = " is " + std::string(Name(OtherHalf()));
  ExpectRefused(forward(Output({2, 4}, OtherHalf()), b, 0, u), "a" + is_half);
  ExpectRefused(forward(a, Output({5, 2}, OtherHalf()), 0, u), "b" + is_half);
  ExpectRefused(forward(a, b, 0, Output({3, 2}, OtherHalf())), "u" + is_half);
  ExpectRefused(forward(a, b, 2, u), "columns are not all in y");
  ExpectRefused(forward(a, b, -1, u), "columns are not all in y");
  ExpectRefused(forward(a, b, 0, Output({3, 3})), "u is $T [3, 3]");
  ExpectRefused([=](Stream& s) { LoraBackward(s, x, u, a, b, 1, y, 0, x, {}, {}, workspace); },
                "[lora_backward] dx and x overlap");
  ExpectRefused([=, dx = Output({3, 4})](
                    Stream& s) { LoraBackward(s, x, u, a, b, 1, y, 0, dx, a, {}, workspace); },
                "da and a overlap");
  ExpectDTypesRefused("lora_forward", [&](Stream& s) {
    const View x = Output({3, 4}), a = Output({2, 4}), b = Output({5, 2}), u = Output({3, 2});
    LoraForward(s, x, a, b, 1, 0, u, Output({3, 6}));
  });
  ExpectDTypesRefused("lora_backward", [&](Stream& s) {
    const View x = Output({3, 4}), u = Output({3, 2}), a = Output({2, 4}), b = Output({5, 2});
    const View dy = Output({3, 6}), dx = Output({3, 4}), da = Output({2, 4}), db = Output({5, 2});
    LoraBackward(s, x, u, a, b, 1, dy, 0, dx, da, db, workspace);
  });
}

}  // namespace
}  // namespace fsdp
