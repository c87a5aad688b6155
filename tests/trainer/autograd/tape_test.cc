#include "trainer/autograd/tape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/testing/on_tape.h"
#include "trainer/ops/activations.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"

namespace fsdp {
namespace {

// Two kinds of node: one whose result is cheap to make again, and one that hands its gradient on to
// two. Backward works in place where it may.
Var Gelu(Tape& tape, const Var& x) {
  Var y = tape.NewVar(x.shape, x.dtype);
  const auto forward = [&tape, x = x.value](View out) {
    GeluForward(tape.stream(), x->Get(), out);
  };
  forward(y.view());
  tape.Cheap({y.value}, [forward](const std::vector<View>& out) { forward(out[0]); });
  tape.Push([&tape, x, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = Tape::Owned(dy) ? dy : tape.New(x.shape, x.dtype);
    GeluBackward(tape.stream(), x.view(), dy->view(), dx->view());
    dy = nullptr;
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

Var Sum(Tape& tape, const Var& x, const Var& y) {
  Var sum = tape.NewVar(x.shape, x.dtype);
  Add(tape.stream(), x.view(), y.view(), sum.view());
  tape.Push([&tape, x = x.grad, y = y.grad, grad = sum.grad] {
    TensorPtr d = Tape::Take(grad);
    tape.Add(x, d);
    tape.Add(y, std::move(d));
  });
  return sum;
}

using Branches = std::function<Var(Tape& tape, const Var& x)>;

class TapeTest : public testing::OnTape {
 protected:
  // The gradient of x where that of body(x) is `dy`; also checks that dy, which others may still
  // read, is left alone.
  std::vector<float> Gradient(const Branches& body) {
    const TensorPtr x = Random(kShape, "x"), dy = Random(kShape, "dy");
    const std::vector<float> before = Values(dy);
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
    const Var input(x, std::make_shared<TensorPtr>());
    *body(tape, input).grad = dy;
    tape.Backward();
    stream_->Synchronize();
    EXPECT_EQ(Values(dy), before) << "a shared gradient was written";
    return Values(*input.grad);
  }
};

// Doubling a float is exact, so two equal branches give exactly twice the gradient of one, unless
// one branch wrote into what it shares with the other.
TEST_F(TapeTest, BranchesDoNotWriteTheGradientTheyShare) {
  const auto one = Gradient([](Tape& t, const Var& x) { return Gelu(t, x); });
  const auto two = Gradient([](Tape& t, const Var& x) {
    const Var a = Gelu(t, x), b = Gelu(t, x);
    return Sum(t, a, b);
  });
  const auto four = Gradient([](Tape& t, const Var& x) {
    const Var a = Gelu(t, x), b = Gelu(t, x), c = Gelu(t, x), d = Gelu(t, x);
    return Sum(t, Sum(t, a, b), Sum(t, c, d));
  });
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(two[i], 2 * one[i]) << i;
    EXPECT_EQ(four[i], 4 * one[i]) << i;
  }
}

// Around a skip connection: the branch adds to the gradient that passes by. Both orders.
TEST_F(TapeTest, ASkipConnectionAddsOnce) {
  const auto branch = Gradient([](Tape& t, const Var& x) { return Gelu(t, x); });
  const size_t one = allocator_.total();
  const std::vector<float> dy = Values(Random(kShape, "dy"));
  for (const bool skip_first : {false, true}) {
    const size_t before = allocator_.total();
    const auto sum = Gradient([&](Tape& t, const Var& x) {
      const Var y = Gelu(t, x);
      return skip_first ? Sum(t, x, y) : Sum(t, y, x);
    });
    // Those of the branch and its sum with x: the branch's gradient is added to in place.
    EXPECT_EQ(allocator_.total() - before, one + 1);
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], dy[i] + branch[i]) << i;
  }
}

TEST_F(TapeTest, AnInputUsedTwiceByOneNodeCountsTwice) {
  const std::vector<float> dy = Values(Random(kShape, "dy"));
  const auto sum = Gradient([](Tape& t, const Var& x) {
    const Var a = Gelu(t, x);
    return Sum(t, Sum(t, x, x), a);
  });
  const auto branch = Gradient([](Tape& t, const Var& x) { return Gelu(t, x); });
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], 2 * dy[i] + branch[i], 1e-6) << i;
}

Var TwoBlocks(Tape& tape, const Var& x) {
  const auto body = [](Tape& t, const Var& in) { return Sum(t, in, Gelu(t, in)); };
  const Var middle = tape.Segment(0, x, true, body);
  return tape.Segment(1, middle, true, body);
}

class TapeRecompute : public TapeTest, public ::testing::WithParamInterface<Recompute> {};

TEST_P(TapeRecompute, SameBitsAndNothingKept) {
  const auto plain = Gradient(TwoBlocks);
  journal_.lines.clear();
  const TensorPtr x = Random(kShape, "x");
  TensorPtr dy = Random(kShape, "dy");
  const int before = allocator_.live();
  {
    Tape tape(*stream_, allocator_, journal_, true, GetParam());
    const Var input(x, std::make_shared<TensorPtr>());
    {
      const Var y = TwoBlocks(tape, input);
      *y.grad = std::move(dy);
    }
    tape.Backward();
    stream_->Synchronize();
    EXPECT_EQ(Values(*input.grad), plain);
  }
  EXPECT_EQ(allocator_.live(), before - 1);  // dy went, too.
  std::vector<std::string> want{"enter 0 F", "leave 0 F", "enter 1 F", "leave 1 F"};
  for (const char* segment : {"1 ", "0 "}) {
    for (const char pass : {'R', 'B'}) {
      if (pass == 'R' && GetParam() != Recompute::kFull) continue;
      want.push_back(std::string("enter ") + segment + pass);
      want.push_back(std::string("leave ") + segment + pass);
    }
  }
  EXPECT_EQ(journal_.lines, want);
}

// Whether a segment is run for itself or not, and again.
TEST_P(TapeRecompute, SegmentsAttendAsTheTapeDoes) {
  const TensorPtr x = Random(kShape, "x");
  Tape tape(*stream_, allocator_, journal_, /*record=*/true, GetParam());
  tape.AttendWith(AttentionBackend::kCudnn, /*documents=*/false);
  const View scale = Random(Shape{1}, "scale")->view();
  tape.ScaleGradients(scale);
  int runs = 0;
  const Var y = tape.Segment(0, Var(x, std::make_shared<TensorPtr>()), /*recomputable=*/true,
                             [&](Tape& t, const Var& in) {
                               ++runs;
                               EXPECT_EQ(t.attention(), AttentionBackend::kCudnn);
                               EXPECT_FALSE(t.documents());
                               EXPECT_EQ(t.loss_scale().value().data, scale.data);
                               return Gelu(t, in);
                             });
  *y.grad = Random(kShape, "dy");
  tape.Backward();
  EXPECT_EQ(runs, GetParam() == Recompute::kFull ? 2 : 1);
}

// (a, b) -> gelu(a) + b.
Var TwoInputs(Tape& tape, std::span<const Var> in) { return Sum(tape, Gelu(tape, in[0]), in[1]); }

// An encoder's output that every block reads, and a mask that nobody differentiates:
//   e = gelu(x);  y1 = gelu(x) + e;  y2 = gelu(y1) + e;  y3 = gelu(e) + y2
struct Shared {
  std::vector<float> dx;
  std::vector<float> y;
};

TEST_P(TapeRecompute, SeveralSegmentsReadOneValue) {
  const TensorPtr x = Random(kShape, "x"), mask = Random(kShape, "mask");
  const auto run = [&](Recompute recompute) {
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, recompute);
    const Var input = Var(x, std::make_shared<TensorPtr>()).ReadUntil(1);
    const Var no_gradient = Var(mask, nullptr).ReadUntil(3);
    const Var e = tape.Segment(0, input, true, [](Tape& t, const Var& in) { return Gelu(t, in); })
                      .ReadUntil(3);
    const Var y1 = tape.Segment(1, {input, e, no_gradient}, true, TwoInputs);
    const Var y2 = tape.Segment(2, {y1, e}, true, TwoInputs);
    const Var y3 = tape.Segment(3, {e, y2, no_gradient}, true, TwoInputs);
    Shared shared;
    stream_->Synchronize();
    shared.y.assign(y3.view().As<float>(), y3.view().As<float>() + y3.shape.NumElements());
    *y3.grad = Random(kShape, "dy");
    tape.Backward();
    stream_->Synchronize();
    shared.dx = Values(*input.grad);
    return shared;
  };
  const Shared plain = run(Recompute::kNone), other = run(GetParam());
  EXPECT_EQ(other.y, plain.y);
  EXPECT_EQ(other.dx, plain.dx);

  // By finite differences of the sum of y3 x dy, in float64.
  const std::vector<float> at = Values(x), dy = Values(Random(kShape, "dy"));
  const auto gelu = [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  };
  const auto y3 = [&](double v) {
    const double e = gelu(v), y1 = gelu(v) + e, y2 = gelu(y1) + e;
    return gelu(e) + y2;
  };
  for (size_t i = 0; i < at.size(); ++i) {
    constexpr double kStep = 1e-4;
    const double slope = (y3(at[i] + kStep) - y3(at[i] - kStep)) / (2 * kStep);
    EXPECT_NEAR(plain.y[i], y3(at[i]), 1e-5);
    EXPECT_NEAR(plain.dx[i], slope * dy[i], 1e-4 * (1 + std::abs(dy[i]))) << i;
  }
}

// A value that four segments read leaves the device once, with the last of them.
TEST_P(TapeRecompute, WhatManyReadLeavesOnce) {
  const TensorPtr x = Random(kShape, "x");
  Tape tape(*stream_, allocator_, journal_, /*record=*/true, GetParam());
  const Var e = tape.Segment(0, Var(x, std::make_shared<TensorPtr>()), true,
                             [](Tape& t, const Var& in) { return Gelu(t, in); })
                    .ReadUntil(3);
  Var y =
      tape.Segment(1, {e}, true, [](Tape& t, std::span<const Var> in) { return Gelu(t, in[0]); });
  for (int s = 2; s <= 3; ++s) y = tape.Segment(s, {y, e}, true, TwoInputs);
  std::vector<const std::byte*> left;
  for (int s = 0; s <= 3; ++s) {
    tape.CopyToHost(s, *stream_, MemoryPlace::kHost, [&](Stream& stream, ConstView from, View to) {
      left.push_back(from.data);
      Copy(stream, from, to);
    });
  }
  EXPECT_EQ(std::count(left.begin(), left.end(), e.view().data), 1);
  std::sort(left.begin(), left.end());
  EXPECT_EQ(std::unique(left.begin(), left.end()), left.end());
}

INSTANTIATE_TEST_SUITE_P(All, TapeRecompute,
                         ::testing::Values(Recompute::kNone, Recompute::kSelective,
                                           Recompute::kFull));

TEST_F(TapeTest, EvaluationKeepsNothing) {
  const TensorPtr x = Random(kShape, "x");
  const int before = allocator_.live();
  Tape tape(*stream_, allocator_, journal_, /*record=*/false, Recompute::kFull);
  {
    const Var y = TwoBlocks(tape, Var(x, nullptr));
    EXPECT_EQ(allocator_.live(), before + 1);
  }
  tape.Backward();
  EXPECT_EQ(allocator_.live(), before);
  EXPECT_EQ(journal_.lines.size(), 4u);
}

// A value that is dropped and made again has its old dtype, whatever that of its inputs.
TEST_F(TapeTest, AValueMadeAgainKeepsItsDType) {
  const TensorPtr x = Random(kShape, "x");
  Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kSelective);
  const Var input(x, std::make_shared<TensorPtr>());
  SavedPtr cheap;
  std::vector<uint16_t> first, again;
  const auto bits = [this](const View& view) {
    stream_->Synchronize();
    EXPECT_EQ(view.dtype, DType::kBFloat16);
    EXPECT_EQ(view.shape, kShape);
    const uint16_t* data = view.As<uint16_t>();
    return std::vector<uint16_t>(data, data + view.NumElements());
  };
  int made = 0;
  tape.Segment(0, input, false, [&](Tape& t, const Var& in) {
    const Var y = t.NewVar(in.shape, DType::kBFloat16);
    EXPECT_EQ(y.dtype, DType::kBFloat16);
    const auto make = [&](const View& to) {
      ++made;
      Cast(*stream_, x->view(), to);
    };
    make(y.view());
    first = bits(y.view());
    t.Cheap({y.value}, [make](const std::vector<View>& out) { make(out[0]); });
    cheap = y.value;
    t.Push([&, grad = in.grad] {
      again = bits(cheap->Get());
      t.Add(grad, Random(kShape, "dx"));
    });
    return in;
  });
  tape.Backward();
  EXPECT_EQ(made, 2);
  EXPECT_EQ(again, first);
}

// Sums of gradients, in place and, where both are shared, in a tensor of their own.
TEST_F(TapeTest, ASumOfGradientsKeepsTheirDType) {
  for (const bool shared : {false, true}) {
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
    const Var x(Halves(kShape, 0), std::make_shared<TensorPtr>());
    TensorPtr a = Halves(kShape, 0), b = Halves(kShape, 100);
    const TensorPtr keep_a = shared ? a : nullptr, keep_b = shared ? b : nullptr;
    tape.Add(x.grad, std::move(a));
    tape.Add(x.grad, std::move(b));
    stream_->Synchronize();
    const View sum = (*x.grad)->view();
    ASSERT_EQ(sum.dtype, x.dtype);
    for (int64_t i = 0; i < sum.NumElements(); ++i) {
      EXPECT_EQ(static_cast<float>(sum.As<BFloat16>()[i]), static_cast<float>(100 + 2 * i)) << i;
    }
  }
}

using TapeDeathTest = TapeTest;

TEST_F(TapeDeathTest, AGradientThatNeverCame) {
  Tape tape(*stream_, allocator_, journal_, true, Recompute::kNone);
  const Var x(Random(kShape, "x"), std::make_shared<TensorPtr>());
  Gelu(tape, x);
  EXPECT_DEATH(tape.Backward(), "no gradient has reached this value");
}

TEST_F(TapeDeathTest, AnInputThatNobodyHasWritten) {
  Tape tape(*stream_, allocator_, journal_, true, Recompute::kNone);
  const Var x(Random(kShape, "x"), std::make_shared<TensorPtr>());
  EXPECT_DEATH(tape.Segment(2, {x, Var()}, true, TwoInputs),
               "input 1 of segment 2: nobody has written it");
}

TEST_F(TapeDeathTest, AReaderBehindTheLast) {
  Tape tape(*stream_, allocator_, journal_, true, Recompute::kNone);
  const Var x = Var(Random(kShape, "x"), std::make_shared<TensorPtr>()).ReadUntil(1);
  EXPECT_DEATH(tape.Segment(2, {x, x}, true, TwoInputs), "up to segment 1");
}

}  // namespace
}  // namespace fsdp
