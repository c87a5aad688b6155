#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/testing/on_tape.h"
#include "trainer/autograd/tape.h"
#include "trainer/nn/image_layers.h"
#include "trainer/nn/layers.h"

namespace fsdp {
namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr int64_t kSamples = 3, kSide = 3, kIn = 4, kOut = 6;
const Shape kImages{kSamples, kSide, kSide, kIn};

// A parameter as a test binds it.
struct Bound {
  Bound(const TensorPtr& value, const Shape& shape)
      : value(value),
        grad(static_cast<size_t>(shape.NumElements())),
        parameter("p", shape, {}, true) {
    parameter.Bind(value->view().Reshape(shape),
                   View(reinterpret_cast<std::byte*>(grad.data()), DType::kFloat32, shape));
  }
  TensorPtr value;
  Floats grad;
  Parameter parameter;
};

class ConvolutionLayers : public testing::OnTape {
 protected:
  struct Results {
    Floats y;
    std::vector<Floats> gradients;  // For values_.
    Floats mean, variance;
    int64_t count = 0;
    bool operator==(const Results&) const = default;
  };

  // A convolution, its norm, and the channels' factors, which come of their means.
  Results Run(const std::vector<TensorPtr>& at, Recompute recompute = Recompute::kNone,
              bool record = true) {
    Bound kernel(at[1], Shape{kOut, kIn / 2, 3, 3}), w(at[2], Shape{kOut}), b(at[3], Shape{kOut});
    Results results;
    results.mean = Floats(kOut, 0.5f), results.variance = Floats(kOut, 2.0f), results.count = 5;
    ModelBuffer mean("mean", Shape{kOut}, DType::kFloat32, 0);
    ModelBuffer variance("variance", Shape{kOut}, DType::kFloat32, 1);
    ModelBuffer count("count", Shape{}, DType::kInt64, 0);
    const auto bytes = [](auto* data) { return reinterpret_cast<std::byte*>(data); };
    mean.Bind(View(bytes(results.mean.data()), DType::kFloat32, Shape{kOut}), {});
    variance.Bind(View(bytes(results.variance.data()), DType::kFloat32, Shape{kOut}), {});
    count.Bind(View(bytes(&results.count), DType::kInt64, Shape{}), {});
    const BatchNormed norm{&w.parameter, &b.parameter, &mean, &variance, &count, 1e-5f, 0.1f};
    Tape tape(*stream_, allocator_, journal_, record, recompute);
    const Var x(at[0], record ? std::make_shared<TensorPtr>() : nullptr);
    {
      const Var y = tape.Segment(0, x, /*recomputable=*/true, [&](Tape& t, const Var& in) {
        Var v = Convolution(t, in, kernel.parameter,
                            {.padding_height = 1, .padding_width = 1, .groups = 2});
        v = BatchNorm(t, v, norm, weights_->view(), relu_);
        v = ScaleChannels(t, v, Sigmoid(t, MeanPixels(t, v)));
        return Scaled(t, v, 1);
      });
      const View view = y.view();
      stream_->Synchronize();
      results.y.assign(view.As<float>(), view.As<float>() + view.NumElements());
      if (!record) return results;
      *y.grad = Dy();
    }
    tape.Backward();
    stream_->Synchronize();
    results.gradients = {Values(*x.grad), kernel.grad, w.grad, b.grad};
    return results;
  }

  // No loss looks at the sample that does not count.
  TensorPtr Dy() {
    TensorPtr dy = Random({kSamples, kSide, kSide, kOut}, "dy");
    std::memset(dy->view().data + kSide * kSide * kOut * 4, 0, kSide * kSide * kOut * 4);
    return dy;
  }
  TensorPtr Weights(const Floats& values) {
    auto weights = std::make_shared<Tensor>(allocator_, DType::kFloat32, Shape{kSamples});
    std::memcpy(weights->view().data, values.data(), 4 * kSamples);
    return weights;
  }

  bool relu_ = false;
  const TensorPtr weights_ = Weights({1, 0, 1});
  const std::vector<TensorPtr> values_ = {Random(kImages, "x"),
                                          Random({kOut, kIn / 2, 3, 3}, "kernel"),
                                          Random({kOut}, "w"), Random({kOut}, "b")};
};

TEST_F(ConvolutionLayers, GradientsAreWhatDifferencesSay) {
  const Results got = Run(values_);
  const Floats of_y = Values(Dy());
  const Doubles weights(of_y.begin(), of_y.end());
  for (size_t i = 0; i < values_.size(); ++i) {
    const Floats value = Values(values_[i]);
    const auto loss = [&](const Doubles& moved) {
      std::vector<TensorPtr> at = values_;
      at[i] = std::make_shared<Tensor>(allocator_, DType::kFloat32, values_[i]->view().shape);
      const Floats floats(moved.begin(), moved.end());
      std::memcpy(at[i]->view().data, floats.data(), at[i]->view().bytes());
      const Floats y = Run(at).y;
      return Dot(weights, {y.begin(), y.end()});
    };
    const Doubles want = NumericGradient(loss, {value.begin(), value.end()}, /*h=*/1e-2);
    // The error of differences: h^2 of a third derivative, which has the norm's r to the third
    // power.
    EXPECT_TRUE(AllNear({got.gradients[i].begin(), got.gradients[i].end()}, want, 1e-2))
        << "input " << i;
  }
}

// Statistics are those of forward, and are remembered once.
TEST_F(ConvolutionLayers, RecomputationChangesNoBit) {
  for (const bool relu : {false, true}) {
    relu_ = relu;
    const Results got = Run(values_);
    EXPECT_EQ(got.count, 6);
    EXPECT_NE(got.mean, Floats(kOut, 0.5f));
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      EXPECT_EQ(Run(values_, recompute), got);
    }
  }
}

TEST_F(ConvolutionLayers, EvaluationsUseWhatIsRemembered) {
  const Results got = Run(values_, Recompute::kNone, /*record=*/false);
  EXPECT_EQ(got.mean, Floats(kOut, 0.5f));
  EXPECT_EQ(got.count, 5);
  EXPECT_NE(got.y, Run(values_).y);
}

// The input is bytes, and has no gradient.
TEST_F(ConvolutionLayers, PixelsAreInTheTapesDType) {
  const TensorPtr pixels = Random(kImages, "pixels");
  Tape tape(*stream_, allocator_, journal_, /*record=*/false, Recompute::kNone, DType::kBFloat16);
  const Var x = Pixels(tape, pixels->view());
  stream_->Synchronize();
  EXPECT_EQ(x.dtype, DType::kBFloat16);
  EXPECT_EQ(x.shape, kImages);
  EXPECT_EQ(x.grad, nullptr);
  EXPECT_EQ(x.view().As<BFloat16>()[7].bits, BFloat16(pixels->view().As<float>()[7]).bits);
}

}  // namespace
}  // namespace fsdp
