#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/testing/on_tape.h"
#include "trainer/autograd/tape.h"
#include "trainer/nn/layers.h"

namespace fsdp {
namespace {

using Doubles = std::vector<double>;

Doubles AsDoubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

double Gelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// A layer, and its oracle in float64 over rows of x.
struct Layer {
  std::string name;
  Var (*layer)(Tape& tape, const Var& x);
  double (*value)(double x);
  bool gated = false;        // The first half of a row is the gate of the second.
  bool keeps_output = true;  // And nothing else.

  Doubles Oracle(const Doubles& x, int64_t cols) const {
    Doubles y;
    if (!gated) {
      for (const double v : x) y.push_back(value(v));
      return y;
    }
    for (size_t row = 0; row < x.size(); row += cols) {
      for (int64_t j = 0; j < cols / 2; ++j) {
        y.push_back(value(x[row + j]) * x[row + cols / 2 + j]);
      }
    }
    return y;
  }
};

const Layer kLayers[] = {
    {"relu", Relu, [](double x) { return x > 0 ? x : 0; }},
    {"sigmoid", Sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
    {.name = "gelu_exact",
     .layer = GeluExact,
     .value = [](double x) { return x * std::erfc(-x * M_SQRT1_2) / 2; },
     .keeps_output = false},
    {.name = "gated_gelu", .layer = GatedGelu, .value = Gelu, .gated = true, .keeps_output = false},
};

class ActivationLayers : public testing::OnTape {
 protected:
  struct Results {
    std::vector<float> y, dx;
  };
  Results Run(const Layer& layer, const TensorPtr& x, const TensorPtr& dy, Recompute recompute) {
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, recompute);
    const Var input(x, std::make_shared<TensorPtr>());
    Results results;
    {
      const Var y = tape.Segment(0, input, /*recomputable=*/true, layer.layer);
      results.y = Values(TensorOf(y));
      *y.grad = dy;
    }
    tape.Backward();
    stream_->Synchronize();
    results.dx = Values(*input.grad);
    return results;
  }
  TensorPtr TensorOf(const Var& y) {
    auto copy = std::make_shared<Tensor>(allocator_, y.dtype, y.shape);
    const View view = y.view();  // Perhaps made again.
    stream_->Synchronize();
    std::memcpy(copy->view().data, view.data, view.bytes());
    return copy;
  }
};

TEST_F(ActivationLayers, GradientsAreWhatDifferencesSay) {
  constexpr int64_t kRows = 5, kCols = 6;
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(layer.name);
    const TensorPtr x = Random(Shape{kRows, kCols}, "x");
    const Shape out{kRows, layer.gated ? kCols / 2 : kCols};
    const TensorPtr dy = Random(out, "dy");
    const Doubles values = AsDoubles(Values(x)), dout = AsDoubles(Values(dy));
    const Results got = Run(layer, x, dy, Recompute::kNone);
    EXPECT_TRUE(
        AllNear(AsDoubles(got.y), layer.Oracle(values, kCols), Tolerance(DType::kFloat32, 1, 4)));
    const Doubles want = NumericGradient(
        [&](const Doubles& v) { return Dot(layer.Oracle(v, kCols), dout); }, values);
    EXPECT_TRUE(AllNear(AsDoubles(got.dx), want, Tolerance(DType::kFloat32, 1, 16)));
  }
}

TEST_F(ActivationLayers, RecomputationGivesTheSameBits) {
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(layer.name);
    const TensorPtr x = Random(Shape{5, 6}, "x");
    const TensorPtr dy = Random(Shape{5, layer.gated ? 3 : 6}, "dy");
    const Results none = Run(layer, x, dy, Recompute::kNone);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      const Results got = Run(layer, x, dy, recompute);
      EXPECT_EQ(got.y, none.y);
      EXPECT_EQ(got.dx, none.dx);
    }
  }
}

// One tensor of the layer is kept: its output, or its input.
TEST_F(ActivationLayers, KeepOneTensor) {
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(layer.name);
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
    const int before = allocator_.live();
    std::weak_ptr<Saved> input, output;
    {
      const Var x(Random(Shape{5, 6}, "x"), std::make_shared<TensorPtr>());
      const Var y = layer.layer(tape, x);
      input = x.value, output = y.value;
      stream_->Synchronize();
    }
    EXPECT_EQ(allocator_.live(), before + 1);
    EXPECT_EQ(output.expired(), !layer.keeps_output);
    EXPECT_EQ(input.expired(), layer.keeps_output);
  }
}

TEST_F(ActivationLayers, WithoutARecordNothingIsKept) {
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(layer.name);
    Tape tape(*stream_, allocator_, journal_, /*record=*/false, Recompute::kSelective);
    const int before = allocator_.live();
    {
      const Var y = layer.layer(tape, Var(Random(Shape{5, 6}, "x"), nullptr));
      EXPECT_EQ(y.grad, nullptr);
      stream_->Synchronize();
    }
    EXPECT_EQ(allocator_.live(), before);
  }
}

}  // namespace
}  // namespace fsdp
