// Products for CUDA, against float64.
#include <cmath>
#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/gelu_oracle.h"
#include "trainer/ops/cuda/gemm/gemm.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

const LaunchedKernels launched_kernels(__FILE__, {"gemm", "gemm_mma"});

using Values = std::vector<double>;

// The place of a factor or of C in a tensor: elements before the first, between rows, and after the
// last. They are NaN: read by mistake they spoil the result.
struct Place {
  int64_t before = 0, gap = 0, after = 0;
};

enum class Adds { kNothing, kC, kAnother };

enum class Gelu { kNone, kForward, kBackward };

struct Problem {
  int64_t m, n, k;
  bool ta = false, tb = false;
  Place a = {}, b = {}, c = {};
  float scale = 1;
  Adds adds = Adds::kNothing;
  bool bias = false;
  Gelu gelu = Gelu::kNone;
};
void PrintTo(const Problem& p, std::ostream* out) {
  *out << p.m << " x " << p.n << " x " << p.k << (p.ta ? ", A transposed" : "")
       << (p.tb ? ", B transposed" : "") << ", a " << p.a.before << "/" << p.a.gap << "/"
       << p.a.after << ", b " << p.b.before << "/" << p.b.gap << "/" << p.b.after << ", c "
       << p.c.before << "/" << p.c.gap << "/" << p.c.after << ", scale " << p.scale << ", adds "
       << static_cast<int>(p.adds) << (p.bias ? ", bias" : "") << ", gelu "
       << static_cast<int>(p.gelu);
}

struct DTypes {
  DType a, b, c, bias;
};
void PrintTo(const DTypes& d, std::ostream* out) {
  *out << ", " << Name(d.a) << " " << Name(d.b) << " " << Name(d.c) << ", bias " << Name(d.bias);
}

struct Matrix {
  View tensor;
  int64_t rows, cols;
  Place place;

  int64_t stride() const { return cols + place.gap; }
};

struct Operands {
  Matrix a, b, c;
  std::optional<ConstView> bias = std::nullopt;
  std::optional<Matrix> added = std::nullopt;  // Where it is not C.
  std::optional<Matrix> gelu = std::nullopt;   // y, or u.
};
template <typename Visit>
void ForEachAddress(Operands& operands, const Visit& visit) {
  for (Matrix* matrix : {&operands.a, &operands.b, &operands.c}) visit(matrix->tensor);
  visit(operands.bias);
  if (operands.added) visit(operands.added->tensor);
  if (operands.gelu) visit(operands.gelu->tensor);
}

void Multiply(CudaStreamHandle stream, const Problem& p, const Operands& x) {
  const auto factor = [](const Matrix& m, bool transposed) {
    return Factor(m.tensor, m.place.before, m.stride(), transposed);
  };
  const auto data = [](const std::optional<Matrix>& m) {
    return m ? Result(m->tensor, m->place.before, m->stride()).data : nullptr;
  };
  void* const gelu = data(x.gelu);
  Gemm(stream, p.m, p.n, p.k, factor(x.a, p.ta), factor(x.b, p.tb),
       Result(x.c.tensor, x.c.place.before, x.c.stride()),
       {.scale = p.scale,
        .bias = x.bias,
        .added = p.adds == Adds::kC ? data(x.c) : data(x.added),
        .gelu = p.gelu == Gelu::kForward ? gelu : nullptr,
        .gelu_of = p.gelu == Gelu::kBackward ? gelu : nullptr});
}

class CudaGemmTest : public OpTest {
 protected:
  Matrix Put(int64_t rows, int64_t cols, const Place& place, const Values& values, DType dtype) {
    const int64_t stride = cols + place.gap;
    Values all(rows > 0 ? place.before + (rows - 1) * stride + cols + place.after : 0, NAN);
    for (int64_t i = 0; i < rows * cols; ++i) {
      all[place.before + i / cols * stride + i % cols] = values[i];
    }
    const auto n = static_cast<int64_t>(all.size());
    return {Input({n}, all, dtype), rows, cols, place};
  }
  // The elements of C; those between its rows are still NaN.
  Values Elements(const Matrix& matrix) const {
    const Values all = Get(matrix.tensor);
    Values values;
    for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
      const int64_t at = i - matrix.place.before;
      if (at >= 0 && at / matrix.stride() < matrix.rows && at % matrix.stride() < matrix.cols) {
        values.push_back(all[i]);
      } else {
        EXPECT_TRUE(std::isnan(all[i])) << i;
      }
    }
    return values;
  }

  struct Inputs {
    Values a, b, c, bias, u;
  };
  Inputs MakeInputs(const Problem& p, const DTypes& dtypes) const {
    Random a(1, dtypes.a), b(2, dtypes.b), c(3, dtypes.c), bias(4, dtypes.bias);
    return {a.Vector(p.m * p.k), b.Vector(p.k * p.n), c.Vector(p.m * p.n), bias.Vector(p.n),
            c.Vector(p.m * p.n)};
  }

  struct Results {
    Values c, gelu;
  };
  Results RunGemm(const Problem& p, const DTypes& dtypes, const Inputs& in) {
    const Values nothing(p.m * p.n, NAN);
    Operands x{Put(p.ta ? p.k : p.m, p.ta ? p.m : p.k, p.a, in.a, dtypes.a),
               Put(p.tb ? p.n : p.k, p.tb ? p.k : p.n, p.b, in.b, dtypes.b),
               Put(p.m, p.n, p.c, p.adds == Adds::kC ? in.c : nothing, dtypes.c)};
    Operation operation{.name = "gemm",
                        .reads = {x.a.tensor, x.b.tensor},
                        .writes = {x.c.tensor},
                        .costs = {{Cost{.bytes_read = 1}, {.launches = p.m > 0 && p.n > 0}}}};
    if (p.bias) {
      x.bias = Input({p.n}, in.bias, dtypes.bias);
      operation.reads.push_back(*x.bias);
    }
    if (p.adds == Adds::kAnother) {
      x.added = Put(p.m, p.n, p.c, in.c, dtypes.c);
      operation.reads.push_back(x.added->tensor);
    }
    if (p.gelu != Gelu::kNone) {
      const bool forward = p.gelu == Gelu::kForward;
      x.gelu = Put(p.m, p.n, p.c, forward ? nothing : in.u, dtypes.c);
      (forward ? operation.writes.push_back(x.gelu->tensor)
               : operation.reads.push_back(x.gelu->tensor));
    }
    operation.kernels.cuda = OnCuda(Multiply, p, x);
    Run([&](Stream& stream) { stream.Enqueue(operation); });
    return {Elements(x.c), x.gelu ? Elements(*x.gelu) : Values()};
  }

  // Before C is rounded, and before GELU's derivative.
  static Values Oracle(const Problem& p, const Inputs& in) {
    Values want;
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < p.k; ++l) {
          sum += in.a[p.ta ? l * p.m + i : i * p.k + l] * in.b[p.tb ? j * p.k + l : l * p.n + j];
        }
        const int64_t at = i * p.n + j;
        const double added = p.adds == Adds::kNothing ? 0 : in.c[at];
        want.push_back(p.scale * sum + (p.bias ? in.bias[j] : 0) + added);
      }
    }
    return want;
  }

  void Check(const Problem& p, const DTypes& dtypes) {
    SCOPED_TRACE(::testing::PrintToString(p) + ::testing::PrintToString(dtypes));
    const Inputs in = MakeInputs(p, dtypes);
    const Results got = RunGemm(p, dtypes, in);
    Values want = Oracle(p, in);
    double tolerance = Tolerance(dtypes.c, p.k);
    if (p.gelu == Gelu::kForward) {
      Values activated = got.c;
      for (double& v : activated) v = GeluOracle(v);
      EXPECT_TRUE(AllNear(got.gelu, activated, Tolerance(dtypes.c, 1)));
    } else if (p.gelu == Gelu::kBackward) {
      for (size_t i = 0; i < want.size(); ++i) want[i] *= GeluSlope(in.u[i]);
      // Rounded before it is multiplied by a slope of at most 1.13, and after.
      tolerance = 1.13 * tolerance + Tolerance(dtypes.c, 1);
    }
    EXPECT_TRUE(AllNear(got.c, want, tolerance));
    Clear();
  }
  void Check(const Problem& p) { Check(p, {dtype(), dtype(), dtype(), dtype()}); }
};

// Sizes around those of tiles, slices and packs, in all forms.
TEST_P(CudaGemmTest, MatchesOracle) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      Check({1, 1, 1, ta, tb});
      Check({.m = 7, .n = 33, .k = 129, .ta = ta, .tb = tb, .adds = Adds::kC});
      Check({.m = 33, .n = 129, .k = 7, .ta = ta, .tb = tb, .scale = 0.5f, .bias = true});
      Check({.m = 129, .n = 7, .k = 33, .ta = ta, .tb = tb, .scale = -0.75f, .adds = Adds::kC});
      Check({.m = 64, .n = 128, .k = 160, .ta = ta, .tb = tb, .adds = Adds::kC, .bias = true});
      Check({.m = 72, .n = 40, .k = 200, .ta = ta, .tb = tb, .adds = Adds::kAnother});
    }
  }
}

// Parts of larger tensors: packs of 16 bytes here and not there.
TEST_P(CudaGemmTest, AnyStrideAndAlignment) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Problem p{
          .m = 40, .n = 72, .k = 88, .ta = ta, .tb = tb, .adds = Adds::kC, .bias = true};
      for (const Place& place :
           {Place{8, 8, 8}, Place{0, 4, 0}, Place{1, 7, 0}, Place{3, 8, 1}, Place{4, 0, 4}}) {
        Problem q = p;
        q.a = place;
        Check(q);
        q = p, q.b = place;
        Check(q);
        q = p, q.c = place;
        Check(q);
        q.adds = Adds::kAnother;
        Check(q);
      }
    }
  }
}

TEST_P(CudaGemmTest, GeluOnTheWay) {
  for (const Gelu gelu : {Gelu::kForward, Gelu::kBackward}) {
    for (const int64_t gap : {0, 3, 8}) {
      Check({.m = 33, .n = 80, .k = 17, .c = {gap, gap, gap}, .bias = true, .gelu = gelu});
      Check({.m = 65, .n = 9, .k = 40, .tb = true, .c = {0, gap}, .gelu = gelu});
    }
  }
}

// Rows that begin at packs, which a library takes, too.
TEST_P(CudaGemmTest, WholePacks) {
  const Place gap{.before = 0, .gap = 16, .after = 0};
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Problem p{.m = 24, .n = 40, .k = 72, .ta = ta, .tb = tb};
      for (const Adds adds : {Adds::kNothing, Adds::kC, Adds::kAnother}) {
        for (const bool bias : {false, true}) {
          Problem q = p;
          q.adds = adds, q.bias = bias;
          Check(q);
          Check(q, {dtype(), dtype(), kF32, kF32});
        }
      }
      for (const Gelu gelu : {Gelu::kForward, Gelu::kBackward}) {
        Problem q = p;
        q.gelu = gelu;
        Check(q);
        q.bias = gelu == Gelu::kForward;
        q.c = gap;
        Check(q);
      }
      Problem q = p;
      q.a = q.b = q.c = gap, q.scale = 0.5f;
      Check(q);
    }
  }
}

// 128 tiles of 128 x 128: those are the ones that are taken. The slices of one go round.
TEST_P(CudaGemmTest, LargeTiles) {
  Check({.m = 2, .n = 16300, .k = 137, .adds = Adds::kC, .bias = true});
  Check({.m = 2, .n = 16300, .k = 41, .ta = true});
  Check({.m = 2, .n = 16300, .k = 41, .tb = true});
}

// More than half of a tile's rows.
TEST_P(CudaGemmTest, WholeLargeTiles) { Check({.m = 8144, .n = 131, .k = 9, .scale = 0.5f}); }

TEST_P(CudaGemmTest, EveryDTypeOfEveryOperand) {
  const Problem p{.m = 21, .n = 43, .k = 70, .adds = Adds::kC, .bias = true};
  for (const DType other : {kF32, kBF16, kF16}) {
    Check(p, {dtype(), other, kF32, dtype()});
    Check(p, {other, dtype(), dtype(), kF32});
    Check(p, {dtype(), dtype(), other, other});
  }
}

// With one factor in fp32 the product is that of fp32.
TEST_P(CudaGemmTest, FactorsAreConvertedExactly) {
  const Problem p{.m = 21, .n = 43, .k = 70, .tb = true};
  const DTypes mixed{dtype(), kF32, kF32, kF32};
  const Inputs in = MakeInputs(p, mixed);
  EXPECT_EQ(RunGemm(p, mixed, in).c, RunGemm(p, {kF32, kF32, kF32, kF32}, in).c);
}

// The same sums, whatever is beside them, however operands lie, whatever C's dtype.
TEST_P(CudaGemmTest, BitsBelongToTheElement) {
  const DTypes dtypes{dtype(), dtype(), kF32, kF32};
  for (const bool tb : {false, true}) {
    const Problem large{.m = 2, .n = 16300, .k = 50, .tb = tb};
    const Inputs in = MakeInputs(large, dtypes);
    const Values all = RunGemm(large, dtypes, in).c;
    Problem small = large;
    small.n = 50;
    Inputs some = in;
    if (tb) {
      some.b.resize(small.n * small.k);
    } else {
      for (int64_t i = 0; i < small.k * small.n; ++i) {
        some.b[i] = in.b[i / small.n * large.n + i % small.n];
      }
    }
    Values want;
    for (int64_t i = 0; i < small.m * small.n; ++i) {
      want.push_back(all[i / small.n * large.n + i % small.n]);
    }
    EXPECT_EQ(RunGemm(small, dtypes, some).c, want);
    small.a = {1, 3, 0}, small.b = {0, 1, 2}, small.c = {5, 0, 1};
    EXPECT_EQ(RunGemm(small, dtypes, some).c, want);
    EXPECT_EQ(RunGemm(small, {dtype(), dtype(), kBF16, kF32}, some).c, RoundTo(kBF16, want));
    Clear();
  }
}

TEST_P(CudaGemmTest, NothingToMultiply) {
  Check({.m = 9, .n = 70, .k = 0, .adds = Adds::kC, .bias = true});
  Check({.m = 9, .n = 70, .k = 0, .ta = true});
  Check({.m = 0, .n = 70, .k = 5});
  Check({.m = 9, .n = 0, .k = 5});
}

FSDP_INSTANTIATE_OP_TEST(CudaGemmTest, kF32, kBF16, kF16);

}  // namespace
}  // namespace fsdp
