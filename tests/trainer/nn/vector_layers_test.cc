#include "trainer/nn/vector_layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/testing/on_tape.h"
#include "trainer/autograd/tape.h"
#include "trainer/nn/layers.h"

namespace fsdp {
namespace {

using Doubles = std::vector<double>;

constexpr int64_t kRows = 3, kVectors = 4, kWidth = 5;

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
  std::vector<float> grad;
  Parameter parameter;
};

class VectorLayers : public testing::OnTape {
 protected:
  using Body = std::function<Var(Tape& tape, const Var& x, const Parameter& weight)>;

  struct Results {
    std::vector<float> y, dx, dw;
    bool operator==(const Results&) const = default;
  };
  Results Run(const Body& body, const std::vector<TensorPtr>& at,
              Recompute recompute = Recompute::kNone) {
    Bound weight(at[1], shape_);
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, recompute);
    const Var x(at[0], std::make_shared<TensorPtr>());
    Results results;
    {
      const Var y = tape.Segment(0, x, /*recomputable=*/true, [&](Tape& t, const Var& in) {
        return body(t, GeluExact(t, in), weight.parameter);
      });
      const View view = y.view();
      stream_->Synchronize();
      results.y.assign(view.As<float>(), view.As<float>() + view.NumElements());
      *y.grad = Random(y.shape, "dy");
    }
    tape.Backward();
    stream_->Synchronize();
    results.dx = Values(*x.grad);
    results.dw = weight.grad;
    return results;
  }

  // Gradients of x and of the weight are what differences say, in every mode of recomputation.
  void Hold(const Body& body, const Shape& weight) {
    shape_ = weight;
    const std::vector<TensorPtr> values = {Random({kRows * kVectors, kWidth}, "x"),
                                           Random(weight, "weight")};
    const Results got = Run(body, values);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      EXPECT_EQ(Run(body, values, recompute), got);
    }
    const std::vector<float> of_y = Values(Random({static_cast<int64_t>(got.y.size())}, "dy"));
    const Doubles weights(of_y.begin(), of_y.end());
    const std::vector<std::vector<float>> gradients = {got.dx, got.dw};
    for (size_t i = 0; i < values.size(); ++i) {
      const std::vector<float> value = Values(values[i]);
      const auto loss = [&](const Doubles& moved) {
        std::vector<TensorPtr> at = values;
        at[i] = std::make_shared<Tensor>(allocator_, DType::kFloat32, values[i]->view().shape);
        const std::vector<float> floats(moved.begin(), moved.end());
        std::memcpy(at[i]->view().data, floats.data(), at[i]->view().bytes());
        const std::vector<float> y = Run(body, at).y;
        return Dot(weights, {y.begin(), y.end()});
      };
      const Doubles want = NumericGradient(loss, {value.begin(), value.end()}, /*h=*/1e-2);
      EXPECT_TRUE(AllNear({gradients[i].begin(), gradients[i].end()}, want, 2e-3)) << "input " << i;
    }
  }

  Shape shape_;
};

// Behind each a linear layer, which needs its output for the weight's gradient.
Var Behind(Tape& t, const Var& x, const Parameter& weight) {
  return Linear(t, x, weight, WeightLayout::kOutIn, nullptr);
}

TEST_F(VectorLayers, SwappedVectorsAreMixed) {
  Hold(
      [](Tape& t, const Var& x, const Parameter& w) {
        return SwapVectors(t, Behind(t, SwapVectors(t, x, kRows), w), kRows);
      },
      Shape{7, kVectors});
}

TEST_F(VectorLayers, PairsAreMultiplied) {
  Hold(
      [](Tape& t, const Var& x, const Parameter& w) { return Behind(t, PairDots(t, x, kRows), w); },
      Shape{3, kVectors * (kVectors - 1) / 2});
}

// As many elements in another shape: all vectors of a row at once, and back.
TEST_F(VectorLayers, WholeRowsAreMultiplied) {
  Hold(
      [](Tape& t, const Var& x, const Parameter& w) {
        const Var rows = Behind(t, x, w);
        EXPECT_EQ(rows.shape, (Shape{kRows, kVectors * kWidth}));
        return LinearResidual(t, Multiply(t, x, rows), w, WeightLayout::kOutIn, nullptr, x);
      },
      Shape{kVectors * kWidth, kVectors * kWidth});
}

TEST_F(VectorLayers, VectorsAreJoined) {
  Hold(
      [](Tape& t, const Var& x, const Parameter& w) {
        const Var rows = Behind(t, x, w);
        const Var y = JoinVectors(t, x, rows, kRows, kWidth);
        EXPECT_EQ(y.shape, (Shape{kRows * (kVectors + 2), kWidth}));
        return y;
      },
      Shape{2 * kWidth, kVectors * kWidth});
}

TEST_F(VectorLayers, VectorsAreConvolved) {
  const Shape shape{6, kWidth, 3, 1};
  Hold([](Tape& t, const Var& x, const Parameter& w) { return ConvolveVectors(t, x, w, kRows); },
       shape);
  // By its definition, of the vectors as they come.
  const TensorPtr in = Random({kRows * kVectors, kWidth}, "x"), kernel = Random(shape, "weight");
  shape_ = shape;
  const std::vector<float> x = Values(in), w = Values(kernel);
  Bound weight(kernel, shape);
  Tape tape(*stream_, allocator_, journal_, /*record=*/false, Recompute::kNone);
  std::vector<float> y;
  tape.Segment(0, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
    const Var result = ConvolveVectors(t, Var(in, nullptr), weight.parameter, kRows);
    stream_->Synchronize();
    y.assign(result.view().As<float>(), result.view().As<float>() + result.shape.NumElements());
    return Var{};
  });
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kVectors; ++i) {
      for (int64_t o = 0; o < 6; ++o) {
        double want = 0;
        for (int64_t tap = 0; tap < 3; ++tap) {
          const int64_t from = i + tap - 1;
          if (from < 0 || from >= kVectors) continue;
          for (int64_t c = 0; c < kWidth; ++c) {
            want += static_cast<double>(w[(o * kWidth + c) * 3 + tap]) *
                    x[(row * kVectors + from) * kWidth + c];
          }
        }
        EXPECT_NEAR(y[(row * kVectors + i) * 6 + o], want, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
