#include "trainer/nn/layers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/testing/on_tape.h"
#include "trainer/autograd/tape.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

using Layers = testing::OnTape;

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
TEST_F(Layers, TwoUsersOfAnActivation) {
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

// residual + x W, by itself or in one product, where the residual goes on to be used: the same
// bits. With an adapter, too, whose own gradients there are then.
TEST_F(Layers, ResidualInTheProduct) {
  constexpr WeightLayout kLayout = WeightLayout::kOutIn;
  for (const bool adapted : {false, true}) {
    std::vector<std::vector<float>> values, dx, dresidual, dw;
    for (const bool together : {false, true}) {
      TestWeight w(Random(Shape{9, 7}, "w"), Shape{9, 7});
      TestWeight a(Random(Shape{2, 7}, "a"), Shape{2, 7}), b(Random(Shape{9, 2}, "b"), Shape{9, 2});
      if (adapted) w.parameter.AddAdapter({&a.parameter, &b.parameter, 0.5f, 0});
      const TensorPtr x = Random(kShape, "x"), residual = Random(Shape{5, 9}, "residual");
      Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
      const Var input(x, std::make_shared<TensorPtr>()),
          skip(residual, std::make_shared<TensorPtr>());
      {
        const Var sum =
            together ? LinearResidual(tape, input, w.parameter, kLayout, nullptr, skip)
                     : Residual(tape, skip, Linear(tape, input, w.parameter, kLayout, nullptr));
        const Var y = Residual(tape, sum, skip);
        *y.grad = Random(Shape{5, 9}, "dy");
        stream_->Synchronize();
        const float* const data = sum.view().As<float>();
        values.emplace_back(data, data + sum.view().NumElements());
      }
      tape.Backward();
      stream_->Synchronize();
      dx.push_back(Values(*input.grad));
      dresidual.push_back(Values(*skip.grad));
      dw.push_back(w.grad);
      for (const TestWeight* more : {&a, &b}) {
        dw.back().insert(dw.back().end(), more->grad.begin(), more->grad.end());
      }
    }
    EXPECT_EQ(values[0], values[1]);
    EXPECT_EQ(dx[0], dx[1]);
    EXPECT_EQ(dresidual[0], dresidual[1]);
    EXPECT_EQ(dw[0], dw[1]);
  }
}

// The gradient of what has none ends there.
TEST_F(Layers, FrozenLayerOfAnInputHasNothingToCompute) {
  TestWeight w(Random(Shape{9, 7}, "w"), Shape{9, 7});
  w.parameter.Freeze();
  Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
  *Linear(tape, Var(Random(kShape, "x"), nullptr), w.parameter, WeightLayout::kOutIn, nullptr)
       .grad = Random(Shape{5, 9}, "dy");
  tape.Backward();
  stream_->Synchronize();
  EXPECT_EQ(w.grad, std::vector<float>(63));
}

// Also for a cheap value, which may be dropped and made again.
TEST_F(Layers, ScaledIsATensorOfItsOwn) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
    for (const float factor : {0.5f, 1.0f}) {
      const TensorPtr x = Random(kShape, "x"), dy = Random(kShape, "dy");
      Tape tape(*stream_, allocator_, journal_, /*record=*/true, recompute);
      const Var input(x, std::make_shared<TensorPtr>());
      const Var y = tape.Segment(0, input, /*recomputable=*/false, [&](Tape& t, const Var& in) {
        const Var cheap = Gelu(t, in), scaled = Scaled(t, cheap, factor);
        stream_->Synchronize();
        for (int64_t i = 0; i < kShape.NumElements(); ++i) {
          EXPECT_EQ(scaled.view().As<float>()[i], factor * cheap.view().As<float>()[i]) << i;
        }
        return Residual(t, scaled, scaled);  // Both halves' gradients are one tensor.
      });
      *y.grad = dy;
      tape.Backward();
      stream_->Synchronize();
      const std::vector<float> dx = Values(*input.grad);

      Tape plain(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
      const Var again(Random(kShape, "x"), std::make_shared<TensorPtr>());
      *Gelu(plain, again).grad = Random(kShape, "dy");
      plain.Backward();
      stream_->Synchronize();
      const std::vector<float> of_gelu = Values(*again.grad);
      for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], 2 * factor * of_gelu[i], 1e-6) << i;
    }
  }
}

// The layers that are made of nothing but sums run in bf16 as they do in fp32.
TEST_F(Layers, ALayersOutputHasTheDTypeOfItsInput) {
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

// Whose kernels attention takes on a GPU shows in its workspace. cuDNN's look at no documents, and
// drop nothing.
TEST(AttentionLayer, TakesCudnnForWholeRowsAlone) {
  SimDevice device({}, nullptr, DeviceType::kCuda);
  std::vector<int64_t> workspaces;
  device.Observe([&](const Operation& operation, const Stream&) {
    workspaces.push_back(operation.writes.back().bytes);
  });
  const std::unique_ptr<Stream> stream = device.CreateStream("compute");
  testing::CountingAllocator allocator;
  testing::Journal journal;
  const auto tensor = [&](const Shape& shape, DType dtype) {
    return std::make_shared<Tensor>(allocator, dtype, shape);
  };
  const TensorPtr positions = tensor(Shape{2, 5}, DType::kInt32);
  const TensorPtr keys = tensor(Shape{2, 2}, DType::kInt32);
  const TensorPtr qkv = tensor(Shape{10, 6 * 16}, DType::kBFloat16);
  const auto forward = [&](bool documents, double dropout, AttentionBackend backend) {
    workspaces.clear();
    Tape tape(*stream, allocator, journal, /*record=*/false, Recompute::kNone);
    tape.AttendWith(backend, documents);
    TokenBatch batch;
    batch.tokens = batch.positions = positions->view();
    batch.sample_keys = keys->view();
    CausalAttention(tape, Var(qkv, nullptr), batch, {4, 1}, {.rate = dropout});
    return workspaces;
  };
  using Bytes = std::vector<int64_t>;
  EXPECT_EQ(forward(false, 0, AttentionBackend::kCudnn), Bytes{256});
  EXPECT_EQ(forward(false, 0, AttentionBackend::kCudnnDeterministic), Bytes{256});
  EXPECT_EQ(forward(false, 0, AttentionBackend::kOwn), Bytes{0});
  EXPECT_EQ(forward(true, 0, AttentionBackend::kCudnn), Bytes{0});
  EXPECT_EQ(forward(false, 0.1, AttentionBackend::kCudnn), Bytes{0});
}

}  // namespace
}  // namespace fsdp
