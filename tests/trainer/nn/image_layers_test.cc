#include "trainer/nn/image_layers.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/testing/on_tape.h"
#include "trainer/autograd/tape.h"
#include "trainer/nn/layers.h"

namespace fsdp {
namespace {

using Doubles = std::vector<double>;

constexpr int64_t kRows = 2, kPatches = 3, kCols = 5;

// A parameter as a test binds it.
struct Bound {
  Bound(const TensorPtr& value, const Shape& shape, bool trainable = true)
      : value(value),
        grad(static_cast<size_t>(shape.NumElements())),
        parameter("p", shape, {}, true) {
    if (!trainable) parameter.Freeze();
    parameter.Bind(value->view().Reshape(shape),
                   View(reinterpret_cast<std::byte*>(grad.data()), DType::kFloat32, shape));
  }
  TensorPtr value;
  std::vector<float> grad;
  Parameter parameter;
};

class ImageLayers : public testing::OnTape {
 protected:
  struct Results {
    std::vector<float> y, dx, dfirst, dpositions;
    bool operator==(const Results&) const = default;
  };
  // All tokens or the first ones, behind a GELU.
  Results Run(const std::vector<TensorPtr>& at, Recompute recompute = Recompute::kNone,
              bool trainable = true) {
    Bound first(at[1], Shape{1, 1, kCols}, trainable);
    Bound positions(at[2], Shape{1, 1 + kPatches, kCols});
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, recompute);
    const Var x(at[0], std::make_shared<TensorPtr>());
    Results results;
    {
      const Var y = tape.Segment(0, x, /*recomputable=*/true, [&](Tape& t, const Var& in) {
        const Var joined = JoinTokens(t, in, first.parameter, positions.parameter, kRows);
        const Var y = GeluExact(t, joined);
        return first_alone_ ? FirstTokens(t, y, kRows) : y;
      });
      const View view = y.view();
      stream_->Synchronize();
      results.y.assign(view.As<float>(), view.As<float>() + view.NumElements());
      *y.grad = Dy();
    }
    tape.Backward();
    stream_->Synchronize();
    results.dx = Values(*x.grad);
    results.dfirst = first.grad;
    results.dpositions = positions.grad;
    return results;
  }

  TensorPtr Dy() { return Random({kRows * (first_alone_ ? 1 : 1 + kPatches), kCols}, "dy"); }

  bool first_alone_ = false;
  const std::vector<TensorPtr> values_ = {Random({kRows * kPatches, kCols}, "x"),
                                          Random({kCols}, "first"),
                                          Random({1 + kPatches, kCols}, "positions")};
};

TEST_F(ImageLayers, GradientsAreWhatDifferencesSay) {
  for (const bool first_alone : {false, true}) {
    first_alone_ = first_alone;
    const Results got = Run(values_);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      EXPECT_EQ(Run(values_, recompute), got);
    }
    const Results frozen = Run(values_, Recompute::kNone, /*trainable=*/false);
    EXPECT_EQ(frozen.dfirst, std::vector<float>(kCols));
    EXPECT_EQ(frozen.dpositions, got.dpositions);
    const std::vector<float> of_y = Values(Dy());
    const Doubles weights(of_y.begin(), of_y.end());
    const std::vector<std::vector<float>> gradients = {got.dx, got.dfirst, got.dpositions};
    for (size_t i = 0; i < values_.size(); ++i) {
      const std::vector<float> value = Values(values_[i]);
      const auto loss = [&](const Doubles& moved) {
        std::vector<TensorPtr> at = values_;
        at[i] = std::make_shared<Tensor>(allocator_, DType::kFloat32, values_[i]->view().shape);
        const std::vector<float> floats(moved.begin(), moved.end());
        std::memcpy(at[i]->view().data, floats.data(), at[i]->view().bytes());
        const std::vector<float> y = Run(at).y;
        return Dot(weights, {y.begin(), y.end()});
      };
      const Doubles want = NumericGradient(loss, {value.begin(), value.end()}, /*h=*/1e-2);
      EXPECT_TRUE(AllNear({gradients[i].begin(), gradients[i].end()}, want, 1e-3)) << "input " << i;
    }
  }
}

// As a convolution whose kernel does not overlap itself: the weight has four dimensions.
TEST_F(ImageLayers, PatchesAreMultipliedAsAConvolutionDoes) {
  constexpr int64_t kSide = 4, kPatch = 2, kChannels = 3;
  const TensorPtr pixels = Random({kRows, kSide, kSide, kChannels}, "pixels");
  const Shape shape{kCols, kChannels, kPatch, kPatch};
  Bound weight(Random(shape, "weight"), shape);
  Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
  std::vector<float> got;
  const TensorPtr dy = Random({kRows * 4, kCols}, "dy");
  {
    const Var y = tape.Segment(0, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
      const Var patches = Patches(t, pixels->view(), kPatch, PatchOrder::kChannelFirst);
      EXPECT_EQ(patches.grad, nullptr);
      return Linear(t, patches, weight.parameter, WeightLayout::kOutIn, nullptr);
    });
    stream_->Synchronize();
    got.assign(y.view().As<float>(), y.view().As<float>() + y.view().NumElements());
    *y.grad = dy;
  }
  tape.Backward();
  stream_->Synchronize();
  const std::vector<float> image = Values(pixels), kernel = Values(weight.value), d = Values(dy);
  Doubles want(got.size()), of_kernel(kernel.size());
  for (int64_t place = 0; place < kRows * 4; ++place) {
    const int64_t row = place / 4, top = place % 4 / 2 * kPatch, left = place % 2 * kPatch;
    for (int64_t out = 0; out < kCols; ++out) {
      for (int64_t i = 0; i < kChannels * kPatch * kPatch; ++i) {
        const int64_t channel = i / 4, y = top + i / 2 % 2, x = left + i % 2;
        const double pixel = image[((row * kSide + y) * kSide + x) * kChannels + channel];
        want[place * kCols + out] += pixel * kernel[out * kChannels * 4 + i];
        of_kernel[out * kChannels * 4 + i] += pixel * d[place * kCols + out];
      }
    }
  }
  EXPECT_TRUE(AllNear({got.begin(), got.end()}, want, 1e-5));
  EXPECT_TRUE(AllNear({weight.grad.begin(), weight.grad.end()}, of_kernel, 1e-5));
}

}  // namespace
}  // namespace fsdp
