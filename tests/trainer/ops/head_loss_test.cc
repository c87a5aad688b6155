#include "trainer/ops/head_loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

const LaunchedKernels launched_kernels(__FILE__, {"loss_terms"});

using Values = std::vector<double>;

struct Problem {
  int64_t rows, cols, vocab;
  float scale;
  Values x, w, targets, weights;
};

// A third of the rows has weight zero, and then a target that no table has.
Problem MakeProblem(DType dtype, uint64_t seed, int64_t rows, int64_t cols, int64_t vocab,
                    float scale) {
  Random random(seed, dtype);
  Problem p{rows,
            cols,
            vocab,
            scale,
            random.Vector(rows * cols),
            random.Vector(vocab * cols),
            random.Integers(rows, vocab),
            random.Vector(rows, 0.5, 1.5)};
  for (int64_t i = 1; i < rows; i += 3) p.weights[i] = 0, p.targets[i] = -100;
  return p;
}

struct Results {
  double loss = 0;
  Values dx, dw;
  // The largest sums of |terms| of an element of dx and of dw: the factor by which a relative error
  // of each term may move the element.
  double dx_terms = 0, dw_terms = 0;
  // The most that logits, each off by `error` of itself, may move the loss, and the largest
  // elements of dx and of dw. With d the error of a row's largest |l|, e^l / sum e^l lies within
  // e^2d of its true value, and log sum e^l - l within 2d.
  double loss_moves = 0, dx_moves = 0, dw_moves = 0;
};

Results Oracle(const Problem& p, double error = 0) {
  Results out{0, Values(p.x.size()), Values(p.w.size())};
  Values dx_terms(p.x.size()), dw_terms(p.w.size()), dx_moves(p.x.size()), dw_moves(p.w.size());
  Values e(p.vocab);
  for (int64_t i = 0; i < p.rows; ++i) {
    if (p.weights[i] == 0) continue;
    const double* x = p.x.data() + i * p.cols;
    double sum = 0, target_logit = 0, largest = 0;
    for (int64_t v = 0; v < p.vocab; ++v) {
      double logit = 0;
      for (int64_t c = 0; c < p.cols; ++c) logit += x[c] * p.w[v * p.cols + c];
      if (v == p.targets[i]) target_logit = logit;
      largest = std::max(largest, std::abs(logit));
      sum += e[v] = std::exp(logit);
    }
    const double factor = p.scale * p.weights[i];
    out.loss += factor * (std::log(sum) - target_logit);
    out.loss_moves += factor * 2 * error * largest;
    for (int64_t v = 0; v < p.vocab; ++v) {
      const double g = factor * (e[v] / sum - (v == p.targets[i]));
      const double move = factor * e[v] / sum * std::expm1(2 * error * largest);
      for (int64_t c = 0; c < p.cols; ++c) {
        out.dx[i * p.cols + c] += g * p.w[v * p.cols + c];
        out.dw[v * p.cols + c] += g * x[c];
        dx_terms[i * p.cols + c] += std::abs(g * p.w[v * p.cols + c]);
        dw_terms[v * p.cols + c] += std::abs(g * x[c]);
        dx_moves[i * p.cols + c] += std::abs(move * p.w[v * p.cols + c]);
        dw_moves[v * p.cols + c] += std::abs(move * x[c]);
      }
    }
  }
  const auto largest = [](const Values& sums) {
    return *std::max_element(sums.begin(), sums.end());
  };
  out.dx_terms = largest(dx_terms), out.dx_moves = largest(dx_moves);
  out.dw_terms = largest(dw_terms), out.dw_moves = largest(dw_moves);
  return out;
}

class HeadLossTest : public OpTest {
 protected:
  static constexpr double kBefore = 0.5;

  int64_t WorkspaceBytes(const Problem& p, DType x, DType w, DType dw) const {
    return HeadLossWorkspaceBytes(p.rows, p.vocab, x, w, kernel_type()) +
           HeadLossDwWorkspaceBytes(p.rows, p.cols, p.vocab, x, w, dw, kernel_type());
  }
  void Upload(const Problem& p) {
    x_ = Input({p.rows, p.cols}, p.x);
    w_ = Input({p.vocab, p.cols}, p.w);
    targets_ = Input({p.rows}, p.targets, DType::kInt32);
    weights_ = Input({p.rows}, p.weights, kF32);
    loss_ = Accumulated({1}, kBefore, kF32);
    workspace_ = Workspace(WorkspaceBytes(p, dtype(), dtype(), dtype()));
    dx_ = Output(x_.shape);
    dw_ = Accumulated(w_.shape, kBefore);
  }
  double Forward(const Problem& p) {
    Clear();
    Upload(p);
    Run([&](Stream& s) {
      HeadLossForward(s, x_, w_, targets_, weights_, p.scale, loss_, workspace_);
    });
    return Get(loss_)[0] - kBefore;
  }
  // Returns for loss and dw the numbers that were added.
  Results ForwardBackward(const Problem& p, double loss_scale = 0) {
    Clear();
    Upload(p);
    std::optional<ConstView> scale;
    if (loss_scale > 0) scale = Input({1}, {loss_scale}, kF32);
    Run([&](Stream& s) {
      HeadLossForwardBackward(s, x_, w_, targets_, weights_, p.scale, scale, loss_, dx_, dw_,
                              workspace_);
    });
    Results got{Get(loss_)[0] - kBefore, Get(dx_), Get(dw_)};
    for (double& v : got.dw) v -= kBefore;
    return got;
  }

  bool cuda() const { return kernel_type() == DeviceType::kCuda; }
  // Half an Epsilon of each logit, where they are rounded.
  Results Want(const Problem& p) const {
    return Oracle(p, cuda() && dtype() != kF32 ? Epsilon(dtype()) / 2 : 0);
  }

  void ExpectLossNear(double got, const Results& want, const Problem& p) const {
    EXPECT_TRUE(AllNear({got}, {want.loss}, Tolerance(kF32, p.cols) + want.loss_moves));
  }
  // dx adds up over the vocabulary, dw over the rows; the logits under both over the columns. In
  // other dtypes than fp32 g is rounded, by half an Epsilon of it at most.
  void ExpectNear(const Results& got, const Results& want, const Problem& p) const {
    const double g = dtype() == kF32 ? 0 : Epsilon(dtype()) / 2;
    const double dx = g * want.dx_terms + (1 + g) * want.dx_moves;
    const double dw = g * want.dw_terms + (1 + g) * want.dw_moves;
    ExpectLossNear(got.loss, want, p);
    EXPECT_TRUE(AllNear(got.dx, want.dx, Tolerance(dtype(), p.cols + p.vocab) + dx));
    EXPECT_TRUE(AllNear(got.dw, want.dw, Tolerance(dtype(), p.cols + p.rows) + dw));
  }

  View x_, w_, targets_, weights_, loss_, workspace_, dx_, dw_;
};

TEST_P(HeadLossTest, GradientMatchesFiniteDifferences) {
  const Problem p = MakeProblem(dtype(), 1, 8, 3, 11, /*scale=*/0.75);
  Results want = Want(p);
  want.dx = NumericGradient(
      [&](const Values& v) {
        Problem q = p;
        q.x = v;
        return Oracle(q).loss;
      },
      p.x);
  want.dw = NumericGradient(
      [&](const Values& v) {
        Problem q = p;
        q.w = v;
        return Oracle(q).loss;
      },
      p.w);
  ExpectNear(ForwardBackward(p), want, p);
}

TEST_P(HeadLossTest, MatchesOracle) {
  // Scales near one keep the gradients of order one, where the tolerance bites. cuBLASLt takes the
  // products of the last alone, whose rows are whole packs of 16 bytes.
  for (const Problem& p :
       {MakeProblem(dtype(), 2, 1, 3, 1021, 1), MakeProblem(dtype(), 3, 37, 66, 1021, 0.5),
        MakeProblem(dtype(), 4, 130, 65, 257, 1), MakeProblem(dtype(), 5, 5, 1, 1, 1),
        MakeProblem(dtype(), 6, 2, 7, 2, 1), MakeProblem(dtype(), 8, 3, 2, 9001, 1),
        MakeProblem(dtype(), 9, 40, 64, 1000, 0.5)}) {
    SCOPED_TRACE(std::to_string(p.rows) + " x " + std::to_string(p.cols) + " x " +
                 std::to_string(p.vocab));
    const Results want = Want(p), got = ForwardBackward(p);
    EXPECT_EQ(cost().flops, (6.0 * p.cols + 4) * p.rows * p.vocab);
    ExpectNear(got, want, p);
    ExpectLossNear(Forward(p), want, p);
    EXPECT_EQ(cost().flops, (2.0 * p.cols + 4) * p.rows * p.vocab);

    const Results again = ForwardBackward(p);
    EXPECT_EQ(got.loss, again.loss);
    EXPECT_EQ(got.dx, again.dx);
    EXPECT_EQ(got.dw, again.dw);
  }
}

// A table in fp32 makes all products those of fp32. dw of whatever dtype is the one in fp32,
// rounded once, however many chunks.
TEST_P(HeadLossTest, TheTableHasDTypesOfItsOwn) {
  Problem p = cuda() ? MakeProblem(dtype(), 12, 8300, 8, 5, 1.0f / 64)
                     : MakeProblem(dtype(), 12, 2100, 33, 257, 1.0f / 64);
  p.w = Random(13, kF32).Vector(p.vocab * p.cols);
  const auto run = [&](DType dtype, DType gradients) {
    const View x = Input({p.rows, p.cols}, p.x, dtype), w = Input({p.vocab, p.cols}, p.w, kF32);
    const View targets = Input({p.rows}, p.targets, DType::kInt32);
    const View weights = Input({p.rows}, p.weights, kF32), loss = Accumulated({1}, 0, kF32);
    const View dx = Output(x.shape, dtype), dw = Accumulated(w.shape, 0, gradients);
    const View workspace = Workspace(WorkspaceBytes(p, dtype, kF32, gradients));
    Run([&](Stream& s) {
      HeadLossForwardBackward(s, x, w, targets, weights, p.scale, std::nullopt, loss, dx, dw,
                              workspace);
    });
    EXPECT_EQ(costs()[0].product.dtype, kF32);
    return Results{Get(loss)[0], Get(dx), Get(dw)};
  };
  const Results want = Oracle(p), own = run(dtype(), kF32);
  EXPECT_EQ(own.loss, run(kF32, kF32).loss);
  EXPECT_TRUE(AllNear(own.dx, want.dx, Tolerance(dtype(), p.cols + p.vocab)));
  EXPECT_TRUE(AllNear(own.dw, want.dw, Tolerance(kF32, p.cols + p.rows)));
  for (const DType gradients : {kBF16, kF16}) {
    EXPECT_EQ(run(dtype(), gradients).dw, RoundTo(gradients, own.dw));
  }
}

// A power of two, so that rounding is the same.
TEST_P(HeadLossTest, TheLossScaleIsOfGradientsAlone) {
  Problem p = MakeProblem(dtype(), 5, 40, 7, 33, 0.25f);
  const Results plain = ForwardBackward(p), scaled = ForwardBackward(p, 8);
  EXPECT_EQ(scaled.loss, plain.loss);
  p.scale *= 8;
  const Results want = ForwardBackward(p);
  EXPECT_EQ(scaled.dx, want.dx);
  EXPECT_EQ(scaled.dw, want.dw);
  EXPECT_NE(scaled.dx, plain.dx);
}

TEST_P(HeadLossTest, AFrozenTableChangesNothingElse) {
  const Problem p = MakeProblem(dtype(), 5, 40, 7, 33, 0.25f);
  const Results want = ForwardBackward(p);
  Clear();
  Upload(p);
  Run([&](Stream& s) {
    HeadLossForwardBackward(s, x_, w_, targets_, weights_, p.scale, std::nullopt, loss_, dx_,
                            std::nullopt, workspace_);
  });
  EXPECT_EQ(Get(loss_)[0] - kBefore, want.loss);
  EXPECT_EQ(Get(dx_), want.dx);
}

TEST_P(HeadLossTest, SeveralChunksTheLastOneShort) {
  const int64_t vocab = cuda() ? 3 : 1021;
  const int64_t chunk = HeadLossChunkRows(int64_t{1} << 40, vocab, dtype(), dtype(), kernel_type());
  const Problem p = MakeProblem(dtype(), 7, (cuda() ? 1 : 2) * chunk + 5, 2, vocab, 1.0f / 512);
  const Results want = Want(p);
  ExpectNear(ForwardBackward(p), want, p);
  ExpectLossNear(Forward(p), want, p);
}

TEST_P(HeadLossTest, RowsOfWeightZeroTakeNoPart) {
  const Problem p = MakeProblem(dtype(), 8, 31, 5, 67, 1);
  const Results got = ForwardBackward(p);
  Problem fewer = p;
  fewer.rows = 0;
  fewer.x.clear(), fewer.targets.clear(), fewer.weights.clear();
  for (int64_t i = 0; i < p.rows; ++i) {
    if (p.weights[i] == 0) {
      for (int64_t c = 0; c < p.cols; ++c) EXPECT_EQ(got.dx[i * p.cols + c], 0) << i;
      continue;
    }
    ++fewer.rows;
    fewer.x.insert(fewer.x.end(), &p.x[i * p.cols], &p.x[i * p.cols] + p.cols);
    fewer.targets.push_back(p.targets[i]);
    fewer.weights.push_back(p.weights[i]);
  }
  const Results want = ForwardBackward(fewer);
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_TRUE(AllNear(got.dw, want.dw, Tolerance(dtype(), p.rows)));

  Problem none = p;
  none.weights.assign(p.rows, 0);
  const Results nothing = ForwardBackward(none);
  EXPECT_EQ(nothing.loss, 0);
  EXPECT_EQ(nothing.dx, Values(p.x.size()));
  EXPECT_EQ(nothing.dw, Values(p.w.size()));
}

// e^1000 is beyond float64; only differences to the largest logit may be taken.
TEST_P(HeadLossTest, LargeLogits) {
  const Problem p{2, 1, 3, 1, {1000, -1000}, {1, 0.5, -1}, {1, 0}, {1, 1}};
  const Results got = ForwardBackward(p);
  Values want_dw = {1000 + 1000, -1000, -1000};
  EXPECT_EQ(got.loss, 500 + 2000);
  EXPECT_EQ(got.dx, (Values{0.5, -2}));
  for (double& w : want_dw) w += kBefore;
  EXPECT_EQ(Get(dw_), RoundTo(dtype(), want_dw));
}

TEST_P(HeadLossTest, ANanInOneRowReachesTheLoss) {
  Problem p = MakeProblem(dtype(), 9, 3, 2, 5, 1);
  p.x[0] = NAN;
  EXPECT_TRUE(std::isnan(Forward(p)));
  EXPECT_TRUE(std::isnan(ForwardBackward(p).loss));
}

TEST(HeadLossChunk, RowsAndWorkspaceAreBounded) {
  constexpr int64_t kMany = int64_t{1} << 40;
  const auto rows = [](int64_t rows, int64_t vocab, DType dtype) {
    return HeadLossChunkRows(rows, vocab, dtype, dtype, DeviceType::kCpu);
  };
  EXPECT_EQ(rows(kMany, 257, kF32), 1024);
  EXPECT_EQ(rows(kMany, 50257, kF32), 1024);
  for (const DType dtype : {kBF16, kF16}) EXPECT_EQ(rows(kMany, 50257, dtype), 512);
  for (const DType dtype : {kF32, kBF16, kF16}) {
    EXPECT_EQ(rows(3, 1021, dtype), 3);
    EXPECT_EQ(rows(kMany, 128000, dtype), 512);
    EXPECT_EQ(rows(kMany, 1 << 23, dtype), 16);
  }
  for (const int64_t vocab : {1, 257, 1021, 50257}) {
    EXPECT_LE(HeadLossWorkspaceBytes(kMany, vocab, kF32, kF32, DeviceType::kCpu),
              (256 << 20) + 1024 * 16 + 64);
  }
}

// There logits have the dtype of w, and the terms of all rows are kept.
TEST(HeadLossChunk, RowsAndWorkspaceAreBoundedOnCuda) {
  constexpr int64_t kMany = int64_t{1} << 30;
  const auto rows = [](int64_t rows, int64_t vocab, DType x, DType w) {
    return HeadLossChunkRows(rows, vocab, x, w, DeviceType::kCuda);
  };
  for (const DType dtype : {kF32, kBF16, kF16}) {
    EXPECT_EQ(rows(3, 1021, dtype, dtype), 3);
    EXPECT_EQ(rows(kMany, 50257, dtype, dtype), 8192);
    for (const int64_t vocab : {1, 50257, 151936, 1 << 20}) {
      EXPECT_LE(HeadLossWorkspaceBytes(kMany, vocab, dtype, dtype, DeviceType::kCuda),
                (int64_t{4} << 30) + 8192 * 7 * SizeOf(dtype) + 8 * kMany + 3 * 64);
    }
  }
  EXPECT_EQ(rows(kMany, 151936, kBF16, kBF16), 8192);
  EXPECT_EQ(rows(kMany, 151936, kBF16, kF32), 7056);
  EXPECT_EQ(rows(kMany, 151936, kF32, kF32), 7056);
}

TEST(HeadLossChunk, SumsForDwAreThereWhereChunksAddUp) {
  const auto bytes = [](int64_t rows, DType x, DType dw, DeviceType device) {
    return HeadLossDwWorkspaceBytes(rows, 64, 257, x, x, dw, device);
  };
  for (const DType dtype : {kBF16, kF16}) {
    EXPECT_EQ(bytes(1024, kF32, dtype, DeviceType::kCpu), 0);
    EXPECT_EQ(bytes(1025, kF32, dtype, DeviceType::kCpu), 64 * 257 * 4);
    EXPECT_EQ(bytes(513, dtype, dtype, DeviceType::kCpu), 64 * 257 * 4);
    EXPECT_EQ(bytes(8192, dtype, dtype, DeviceType::kCuda), 0);
    EXPECT_EQ(bytes(8193, dtype, dtype, DeviceType::kCuda), 64 * 257 * 4);
  }
  EXPECT_EQ(bytes(1025, kF32, kF32, DeviceType::kCpu), 0);
}

TEST_P(HeadLossTest, RefusesWrongArguments) {
  Upload(MakeProblem(dtype(), 11, 4, 3, 5, 1));
  const auto refused = [&](View x, View targets, View loss, View dx, View dw, View workspace,
                           const std::string& message) {
    ExpectRefused(
        [=, this](Stream& s) {
          HeadLossForwardBackward(s, x, w_, targets, weights_, 1, std::nullopt, loss, dx, dw,
                                  workspace);
        },
        "[head_loss_forward_backward] " + message);
  };
  refused(x_.Reshape({3, 4}), targets_, loss_, dx_, dw_, workspace_,
          "w is $T [5, 3], want $T [5, 4]");
  const View half = Output({4, 3}, OtherHalf());
  refused(x_, targets_, loss_, half, dw_, workspace_,
          "dx is " + std::string(Name(half.dtype)) + " [4, 3], want $T [4, 3]");
  ExpectRefused(
      [&](Stream& s) {
        HeadLossForward(s, x_, Output({5, 3}, OtherHalf()), targets_, weights_, 1, loss_,
                        workspace_);
      },
      "[head_loss_forward] w is " + std::string(Name(half.dtype)));
  refused(x_, weights_, loss_, dx_, dw_, workspace_, "targets is fp32 [4], want int32 [4]");
  refused(x_, targets_, dx_, dx_, dw_, workspace_, "loss is $T [4, 3], want fp32 [1]");
  refused(x_, targets_, loss_, x_, dw_, workspace_, "dx and x overlap");
  refused(x_, targets_, loss_, dx_, w_, workspace_, "dw and w overlap");
  refused(x_, targets_, loss_, dx_, dw_, workspace_.Slice(0, 100),
          "workspace has 100 bytes, want >= ");
  const View first(dx_.data, kF32, {1});
  refused(x_, targets_, first, dx_, dw_, workspace_, "dx and loss overlap");
  const View all = Workspace(4096);
  refused(x_, targets_, loss_, dx_, dw_, all.Slice(4, 4000), "workspace does not start at a mult");
  ExpectRefused(
      [&](Stream& s) {
        HeadLossForward(s, x_, w_, targets_, weights_.Slice(0, 3), 1, loss_, workspace_);
      },
      "[head_loss_forward] weights is fp32 [3], want fp32 [4]");
  const auto forward = [&](Stream& s, bool gradients) {
    const View x = Output({4, 3}), w = Output({5, 3}), targets = Output({4}, DType::kInt32);
    const View weights = Output({4}, kF32), loss = Output({1}, kF32);
    if (!gradients) return HeadLossForward(s, x, w, targets, weights, 1, loss, workspace_);
    HeadLossForwardBackward(s, x, w, targets, weights, 1, std::nullopt, loss, Output({4, 3}),
                            Output({5, 3}), workspace_);
  };
  ExpectDTypesRefused("head_loss_forward", [&](Stream& s) { forward(s, false); });
  ExpectDTypesRefused("head_loss_forward_backward", [&](Stream& s) { forward(s, true); });
  EXPECT_THROW(HeadLossWorkspaceBytes(4, 5, DType::kInt32, kF32, kernel_type()),
               std::invalid_argument);
}

FSDP_INSTANTIATE_OP_TEST(HeadLossTest, kF32, kBF16, kF16);

}  // namespace
}  // namespace fsdp
