#include "trainer/ops/attention.h"

#include <cmath>

#include "tests/testing/harness.h"
#include "tests/testing/same_bits.h"

namespace fsdp {
namespace {

struct Case {
  int64_t batch, seq, heads, head_dim;

  Shape Qkv() const { return {batch, seq, 3, heads, head_dim}; }
  Shape Out() const { return {batch, seq, heads, head_dim}; }
  Shape Lse() const { return {batch, heads, seq}; }
  int64_t Terms() const { return seq + head_dim; }
};
// Around a tile of 48 and its blocks of 6 and 16, and odd everything.
constexpr Case kCases[] = {{1, 1, 1, 1},   {2, 1, 3, 5},    {1, 2, 1, 64},
                           {2, 37, 3, 21}, {1, 48, 2, 16},  {1, 49, 1, 17},
                           {1, 97, 3, 64}, {1, 150, 2, 33}, {1, 53, 1, 256}};

// Straight from the definition, in float64.
struct Oracle {
  Case c;
  std::vector<double> qkv, out, lse;

  Oracle(const Case& dims, const std::vector<double>& values)
      : c(dims), qkv(values), out(c.Out().NumElements()), lse(c.Lse().NumElements()) {
    ForEach([&](int64_t b, int64_t h, int64_t i, const std::vector<double>& p) {
      for (int64_t j = 0; j <= i; ++j) {
        for (int64_t d = 0; d < c.head_dim; ++d) out[Row(b, i, h) + d] += p[j] * At(b, j, 2, h)[d];
      }
    });
  }

  int64_t Row(int64_t b, int64_t i, int64_t h) const {
    return ((b * c.seq + i) * c.heads + h) * c.head_dim;
  }
  int64_t Index(int64_t b, int64_t i, int64_t which, int64_t h) const {
    return (((b * c.seq + i) * 3 + which) * c.heads + h) * c.head_dim;
  }
  const double* At(int64_t b, int64_t i, int64_t which, int64_t h) const {
    return qkv.data() + Index(b, i, which, h);
  }
  double DotOf(const double* x, const double* y) const {
    double sum = 0;
    for (int64_t d = 0; d < c.head_dim; ++d) sum += x[d] * y[d];
    return sum;
  }

  // Calls body with the probabilities of each query; sets lse.
  template <typename Body>
  void ForEach(const Body& body) {
    std::vector<double> p(c.seq);
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t i = 0; i < c.seq; ++i) {
          double top = -HUGE_VAL, sum = 0;
          for (int64_t j = 0; j <= i; ++j) {
            p[j] = DotOf(At(b, i, 0, h), At(b, j, 1, h)) / std::sqrt(c.head_dim);
            top = std::max(top, p[j]);
          }
          for (int64_t j = 0; j <= i; ++j) sum += std::exp(p[j] - top);
          const double log_sum = top + std::log(sum);
          for (int64_t j = 0; j <= i; ++j) p[j] = std::exp(p[j] - log_sum);
          lse[(b * c.heads + h) * c.seq + i] = log_sum;
          body(b, h, i, p);
        }
      }
    }
  }

  std::vector<double> Backward(const std::vector<double>& dout) {
    std::vector<double> dqkv(qkv.size());
    const double scale = 1 / std::sqrt(c.head_dim);
    ForEach([&](int64_t b, int64_t h, int64_t i, const std::vector<double>& p) {
      const double* dy = dout.data() + Row(b, i, h);
      const double dot = DotOf(dy, out.data() + Row(b, i, h));
      for (int64_t j = 0; j <= i; ++j) {
        const double ds = scale * p[j] * (DotOf(dy, At(b, j, 2, h)) - dot);
        for (int64_t d = 0; d < c.head_dim; ++d) {
          dqkv[Index(b, i, 0, h) + d] += ds * At(b, j, 1, h)[d];
          dqkv[Index(b, j, 1, h) + d] += ds * At(b, i, 0, h)[d];
          dqkv[Index(b, j, 2, h) + d] += p[j] * dy[d];
        }
      }
    });
    return dqkv;
  }
};

std::string Name(const Case& c) { return c.Qkv().ToString(); }

class AttentionTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(AttentionTest);

TEST_P(AttentionTest, ForwardMatchesOracle) {
  for (const Case& c : kCases) {
    const auto values = Random(1).Vector(c.Qkv().NumElements());
    const Oracle want(c, values);
    const View qkv = Input(c.Qkv(), values), out = Output(c.Out()), lse = Output(c.Lse());
    Run([&](Stream& stream) { AttentionForward(stream, qkv, out, lse); });
    EXPECT_TRUE(AllNear(Get(out), want.out, Tolerance(DType::kFloat32, c.Terms()))) << Name(c);
    EXPECT_TRUE(AllNear(Get(lse), want.lse, Tolerance(DType::kFloat32, c.Terms()))) << Name(c);
    Clear();
  }
}

TEST_P(AttentionTest, GradientMatchesOracle) {
  for (const Case& c : kCases) {
    Random random(2);
    const auto values = random.Vector(c.Qkv().NumElements());
    const auto gradient = random.Vector(c.Out().NumElements());
    Oracle oracle(c, values);
    const View qkv = Input(c.Qkv(), values), dout = Input(c.Out(), gradient);
    const View out = Input(c.Out(), oracle.out), lse = Input(c.Lse(), oracle.lse);
    const View dqkv = Output(c.Qkv());
    Run([&](Stream& stream) { AttentionBackward(stream, qkv, out, lse, dout, dqkv); });
    EXPECT_TRUE(
        AllNear(Get(dqkv), oracle.Backward(gradient), Tolerance(DType::kFloat32, 2 * c.Terms())))
        << Name(c);
    Clear();
  }
}

TEST_P(AttentionTest, GradientMatchesFiniteDifferences) {
  const Case c{2, 7, 2, 3};
  Random random(3);
  const auto values = random.Vector(c.Qkv().NumElements());
  const auto gradient = random.Vector(c.Out().NumElements());
  const auto want =
      NumericGradient([&](const auto& v) { return Dot(gradient, Oracle(c, v).out); }, values);
  Oracle oracle(c, values);
  EXPECT_TRUE(AllNear(oracle.Backward(gradient), want, 1e-8)) << "the oracle's own backward";
  const View qkv = Input(c.Qkv(), values), dout = Input(c.Out(), gradient);
  const View out = Output(c.Out()), lse = Output(c.Lse()), dqkv = Output(c.Qkv());
  Run([&](Stream& stream) {
    AttentionForward(stream, qkv, out, lse);
    AttentionBackward(stream, qkv, out, lse, dout, dqkv);
  });
  EXPECT_TRUE(AllNear(Get(dqkv), want, Tolerance(DType::kFloat32, 2 * c.Terms())));
}

// Scores in the hundreds: exp overflows without the running maximum, and the maximum moves from
// tile to tile.
TEST_P(AttentionTest, LargeScores) {
  const Case c{1, 120, 1, 16};
  auto values = Random(4).Vector(c.Qkv().NumElements());
  for (int64_t i = 0; i < c.seq; ++i) {
    for (int64_t d = 0; d < 16; ++d) values[i * 48 + d] *= 64;           // q.
    for (int64_t d = 16; d < 32; ++d) values[i * 48 + d] *= 1 + i / 16;  // k grows.
  }
  const Oracle want(c, values);
  double largest = 1;
  for (const double l : want.lse) largest = std::max(largest, std::abs(l));
  ASSERT_GT(largest, 100);
  const View qkv = Input(c.Qkv(), values), out = Output(c.Out()), lse = Output(c.Lse());
  Run([&](Stream& stream) { AttentionForward(stream, qkv, out, lse); });
  // exp makes a relative error of the absolute error of a score.
  const double tolerance = Tolerance(DType::kFloat32, c.Terms());
  EXPECT_TRUE(AllNear(Get(out), want.out, largest * tolerance));
  EXPECT_TRUE(AllNear(Get(lse), want.lse, tolerance));
}

TEST_P(AttentionTest, PositionsDoNotSeeTheFuture) {
  const Case c{1, 100, 2, 8};
  auto values = Random(5).Vector(c.Qkv().NumElements());
  const int64_t row = 3 * c.heads * c.head_dim, width = c.heads * c.head_dim;
  const View qkv = Input(c.Qkv(), values), out = Output(c.Out()), lse = Output(c.Lse());
  Run([&](Stream& stream) { AttentionForward(stream, qkv, out, lse); });
  const auto before = Get(out);
  for (const int64_t last : {0, 5, 47, 48, 98}) {
    auto changed = values;
    for (size_t i = (last + 1) * row; i < changed.size(); ++i) changed[i] = -3 * changed[i] + 1;
    Set(qkv, changed);
    Run([&](Stream& stream) { AttentionForward(stream, qkv, out, lse); });
    const auto after = Get(out);
    const int64_t kept = (last + 1) * width;
    EXPECT_TRUE(std::equal(after.begin(), after.begin() + kept, before.begin())) << last;
    EXPECT_NE(after[kept], before[kept]);
  }
}

TEST_P(AttentionTest, NaNShows) {
  const Case c{1, 60, 1, 8};
  const int64_t row = 3 * c.head_dim;
  for (const int64_t which : {0, 1, 2}) {
    auto values = Random(6).Vector(c.Qkv().NumElements());
    values[50 * row + which * c.head_dim] = std::nan("");
    const View qkv = Input(c.Qkv(), values), out = Output(c.Out()), lse = Output(c.Lse());
    Run([&](Stream& stream) { AttentionForward(stream, qkv, out, lse); });
    EXPECT_TRUE(std::isnan(Get(out)[50 * c.head_dim])) << "in part " << which;
    Clear();
  }
}

TEST_P(AttentionTest, NothingToAttendTo) {
  for (const Case& c : {Case{0, 4, 1, 8}, Case{2, 0, 1, 8}, Case{2, 3, 0, 8}}) {
    const View qkv = Input(c.Qkv(), {}), out = Output(c.Out()), lse = Output(c.Lse());
    Run([&](Stream& stream) {
      AttentionForward(stream, qkv, out, lse);
      AttentionBackward(stream, qkv, out, lse, out, qkv);
    });
  }
}

TEST_P(AttentionTest, RefusesWrongArguments) {
  const Case c{1, 4, 2, 8};
  const View qkv = Output(c.Qkv()), out = Output(c.Out()), lse = Output(c.Lse());
  const View dqkv = Output(c.Qkv()), dout = Output(c.Out());
  const auto forward = [&](const View& qkv, const View& out, const View& lse) {
    return [=](Stream& stream) { AttentionForward(stream, qkv, out, lse); };
  };
  ExpectRefused(forward(out, out, lse), "[attention_forward] qkv is");
  ExpectRefused(forward(Output({1, 4, 2, 2, 8}), out, lse), "want [batch, seq, 3, heads");
  ExpectRefused(forward(Output({1, 4, 3, 2, 257}), out, lse), "head_dim");
  ExpectRefused(forward(qkv, Output({1, 2, 4, 8}), lse), "out is");
  ExpectRefused(forward(qkv, out, Output({1, 4, 2})), "lse is");
  ExpectRefused(forward(qkv, qkv.Slice(0, 64).Reshape(c.Out()), lse), "out and qkv overlap");
  const auto backward = [&](const View& dout, const View& dqkv) {
    return [=](Stream& stream) { AttentionBackward(stream, qkv, out, lse, dout, dqkv); };
  };
  ExpectRefused(backward(lse, dqkv), "[attention_backward] dout is");
  ExpectRefused(backward(dout, qkv), "dqkv and qkv overlap");
  ExpectRefused(backward(dout, out), "dqkv is");
}

TEST(Attention, BitsDoNotDependOnThreads) {
  const Case c{2, 70, 3, 20};
  Random random(7);
  auto qkv = Floats(random.Vector(c.Qkv().NumElements()));
  auto dout = Floats(random.Vector(c.Out().NumElements()));
  ExpectSameBits([&](Stream& stream) {
    std::vector<float> out(dout.size()), lse(c.Lse().NumElements()), dqkv(qkv.size());
    AttentionForward(stream, ViewOf(qkv, c.Qkv()), ViewOf(out, c.Out()), ViewOf(lse, c.Lse()));
    AttentionBackward(stream, ViewOf(qkv, c.Qkv()), ViewOf(out, c.Out()), ViewOf(lse, c.Lse()),
                      ViewOf(dout, c.Out()), ViewOf(dqkv, c.Qkv()));
    stream.Synchronize();
    dqkv.insert(dqkv.end(), out.begin(), out.end());
    return dqkv;
  });
}

}  // namespace
}  // namespace fsdp
