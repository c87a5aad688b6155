#include "trainer/autograd/tape.h"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <vector>

#include "trainer/core/philox.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/cast.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {
namespace {

// Gives nothing back before it ends, and counts what is not freed.
class CountingAllocator final : public Allocator {
 public:
  ~CountingAllocator() override {
    for (std::byte* block : blocks_) ::operator delete[](block, std::align_val_t(64));
  }
  std::byte* Allocate(int64_t bytes, MemoryUse) override {
    blocks_.push_back(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(64))));
    ++live_;
    return blocks_.back();
  }
  void Free(std::byte*, int64_t, MemoryUse) noexcept override { --live_; }

  int live() const { return live_; }
  size_t total() const { return blocks_.size(); }

 private:
  std::vector<std::byte*> blocks_;
  int live_ = 0;
};

class Journal final : public SegmentHooks {
 public:
  void Enter(int segment, Pass pass) override { Note("enter ", segment, pass); }
  void Leave(int segment, Pass pass) override { Note("leave ", segment, pass); }
  bool HasBackward(int segment) const override { return segment >= backward_from; }
  std::vector<std::string> lines;
  int backward_from = 0;

 private:
  void Note(const char* what, int segment, Pass pass) {
    lines.push_back(what + std::to_string(segment) + " " + "FRB"[static_cast<int>(pass)]);
  }
};

using Branches = std::function<Var(Tape& tape, const Var& x)>;

class TapeTest : public ::testing::Test {
 protected:
  TensorPtr Random(const Shape& shape, const char* name) {
    auto tensor = std::make_shared<Tensor>(allocator_, DType::kFloat32, shape);
    const RandomStream random(3, name);
    for (int64_t i = 0; i < shape.NumElements(); ++i) {
      tensor->view().As<float>()[i] = random.Normal(i);
    }
    return tensor;
  }
  TensorPtr Halves(const Shape& shape, int64_t first);  // bf16: first, first + 1, ...

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

  static std::vector<float> Values(const TensorPtr& tensor) {
    const float* data = tensor->view().As<float>();
    return {data, data + tensor->view().NumElements()};
  }

  const Shape kShape{5, 7};
  CpuDevice device_;
  CountingAllocator allocator_;
  std::unique_ptr<Stream> stream_ = device_.CreateStream("compute");
  Journal journal_;
};

// Doubling a float is exact, so two equal branches give exactly twice the gradient of one, unless
// one branch wrote into what it shares with the other.
TEST_F(TapeTest, BranchesDoNotWriteTheGradientTheyShare) {
  const auto one = Gradient([](Tape& t, const Var& x) { return Gelu(t, x); });
  const auto two = Gradient([](Tape& t, const Var& x) {
    const Var a = Gelu(t, x), b = Gelu(t, x);
    return Residual(t, a, b);
  });
  const auto four = Gradient([](Tape& t, const Var& x) {
    const Var a = Gelu(t, x), b = Gelu(t, x), c = Gelu(t, x), d = Gelu(t, x);
    return Residual(t, Residual(t, a, b), Residual(t, c, d));
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
      return skip_first ? Residual(t, x, y) : Residual(t, y, x);
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
    return Residual(t, Residual(t, x, x), a);
  });
  const auto branch = Gradient([](Tape& t, const Var& x) { return Gelu(t, x); });
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], 2 * dy[i] + branch[i], 1e-6) << i;
}

// A weight with a place for its gradient.
struct TestWeight {
  TestWeight(const TensorPtr& value, const Shape& shape)
      : value(value), grad(shape.NumElements()), parameter("w", shape, {}, true) {
    parameter.Bind(value->view(),
                   {reinterpret_cast<std::byte*>(grad.data()), DType::kFloat32, shape});
  }
  TensorPtr value;
  std::vector<float> grad;
  Parameter parameter;
};

// gelu(x W), by itself or on the way, with another product as its only user: the same bits. With a
// second user, who gives the activation itself a gradient: the sum of both.
TEST_F(TapeTest, TwoUsersOfAnActivation) {
  constexpr WeightLayout kLayout = WeightLayout::kInOut;
  for (const int users : {1, 2}) {
    std::vector<std::vector<float>> dx, dw;
    for (const bool together : {false, true}) {
      TestWeight first(Random(Shape{7, 9}, "first"), Shape{7, 9});
      TestWeight second(Random(Shape{9, 9}, "second"), Shape{9, 9});
      const TensorPtr x = Random(kShape, "x"), dy = Random(Shape{5, 9}, "dy");
      Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
      const Var input(x, std::make_shared<TensorPtr>());
      {
        const Var a = together ? LinearGelu(tape, input, first.parameter, kLayout, nullptr)
                               : Gelu(tape, Linear(tape, input, first.parameter, kLayout, nullptr));
        Var y = Linear(tape, a, second.parameter, kLayout, nullptr);
        if (users == 2) y = Residual(tape, y, a);
        *y.grad = dy;
      }
      tape.Backward();
      stream_->Synchronize();
      dx.push_back(Values(*input.grad));
      dw.push_back(first.grad);
      dw.back().insert(dw.back().end(), second.grad.begin(), second.grad.end());
    }
    if (users == 1) {
      EXPECT_EQ(dx[0], dx[1]);
      EXPECT_EQ(dw[0], dw[1]);
    }
    for (size_t i = 0; i < dx[0].size(); ++i) EXPECT_NEAR(dx[0][i], dx[1][i], 1e-5) << i;
    for (size_t i = 0; i < dw[0].size(); ++i) EXPECT_NEAR(dw[0][i], dw[1][i], 1e-5) << i;
  }
}

Var TwoBlocks(Tape& tape, const Var& x) {
  const auto body = [](Tape& t, const Var& in) { return Residual(t, in, Gelu(t, in)); };
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

TensorPtr TapeTest::Halves(const Shape& shape, int64_t first) {
  auto tensor = std::make_shared<Tensor>(allocator_, DType::kBFloat16, shape);
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    tensor->view().As<BFloat16>()[i] = BFloat16(static_cast<float>(first + i));
  }
  return tensor;
}

// What is dropped and made again is of the dtype that it had, whatever that of its inputs.
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

// The layers that are made of nothing but sums run in bf16 as they do in fp32.
TEST_F(TapeTest, ALayersOutputHasTheDTypeOfItsInput) {
  Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
  const Var x(Halves(kShape, 0), std::make_shared<TensorPtr>());
  {
    const Var y = Residual(tape, Residual(tape, x, x), x);
    EXPECT_EQ(y.dtype, DType::kBFloat16);
    EXPECT_EQ(y.view().dtype, DType::kBFloat16);
    *y.grad = Halves(kShape, 0);
  }
  tape.Backward();
  stream_->Synchronize();
  const View dx = (*x.grad)->view();
  ASSERT_EQ(dx.dtype, DType::kBFloat16);
  for (int64_t i = 0; i < dx.NumElements(); ++i) {
    EXPECT_EQ(static_cast<float>(dx.As<BFloat16>()[i]), static_cast<float>(3 * i)) << i;
  }
}

using TapeDeathTest = TapeTest;

TEST_F(TapeDeathTest, AGradientThatNeverCame) {
  Tape tape(*stream_, allocator_, journal_, true, Recompute::kNone);
  const Var x(Random(kShape, "x"), std::make_shared<TensorPtr>());
  Gelu(tape, x);
  EXPECT_DEATH(tape.Backward(), "no gradient has reached this value");
}

}  // namespace
}  // namespace fsdp
