#include "trainer/nn/class_losses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/testing/on_tape.h"
#include "trainer/autograd/tape.h"

namespace fsdp {
namespace {

using Doubles = std::vector<double>;

constexpr int64_t kRows = 5, kClasses = 3;
constexpr float kScale = 0.5f, kBefore = 0.25f;
const Doubles kWeights = {1, 0, 0.5, 1, 2};
const Doubles kClassTargets = {0, -100, 2, 1, 1};
const Doubles kBinaryTargets = {0, -100, 1, 0.25, 1};

double ClassOracle(const Doubles& z) {
  double loss = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    if (kWeights[r] == 0) continue;
    double sum = 0;
    for (int64_t v = 0; v < kClasses; ++v) sum += std::exp(z[r * kClasses + v]);
    const double target = z[r * kClasses + static_cast<int64_t>(kClassTargets[r])];
    loss += kScale * kWeights[r] * (std::log(sum) - target);
  }
  return loss;
}

// kNormalizedEntropy's, and kAccuracy's below.
double LabelOracle(const Doubles&) {
  double sum = 0;
  for (int64_t r = 0; r < kRows; ++r) sum += kWeights[r] * kBinaryTargets[r];
  return sum;
}

double CorrectOracle(const Doubles& z) {
  double correct = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = z.begin() + r * kClasses;
    const auto highest = std::max_element(row, row + kClasses) - row;
    if (kWeights[r] != 0 && highest == kClassTargets[r]) correct += kWeights[r];
  }
  return correct;
}

double BinaryOracle(const Doubles& z) {
  double loss = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    if (kWeights[r] == 0) continue;
    loss +=
        kScale * kWeights[r] *
        (std::max(z[r], 0.0) - z[r] * kBinaryTargets[r] + std::log1p(std::exp(-std::abs(z[r]))));
  }
  return loss;
}

struct LossLayer {
  void (*layer)(Tape& tape, const Var& logits, const View& targets, const View& weights,
                float scale, View loss);
  double (*oracle)(const Doubles& z);
  double (*second)(const Doubles& z);
  Shape logits;
  DType target_dtype;
  Doubles targets;
};
const LossLayer kLosses[] = {
    {ClassLoss, ClassOracle, CorrectOracle, Shape{kRows, kClasses}, DType::kInt32, kClassTargets},
    {BinaryLoss, BinaryOracle, LabelOracle, Shape{kRows, 1}, DType::kFloat32, kBinaryTargets},
    {BinaryLoss, BinaryOracle, LabelOracle, Shape{kRows}, DType::kFloat32, kBinaryTargets},
};

class ClassLosses : public testing::OnTape {
 protected:
  TensorPtr From(const Doubles& values, const Shape& shape, DType dtype) {
    auto tensor = std::make_shared<Tensor>(allocator_, dtype, shape);
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kInt32) {
        tensor->view().As<int32_t>()[i] = static_cast<int32_t>(values[i]);
      } else {
        tensor->view().As<float>()[i] = static_cast<float>(values[i]);
      }
    }
    return tensor;
  }

  struct Results {
    float forward = 0, loss = 0;  // Before Backward(), and after it.
    Doubles dz;
  };
  Results Run(const LossLayer& layer, const TensorPtr& z, bool record, float loss_scale = 0) {
    Tape tape(*stream_, allocator_, journal_, record, Recompute::kNone);
    const TensorPtr scale = From({loss_scale}, Shape{1}, DType::kFloat32);
    if (loss_scale > 0) tape.ScaleGradients(scale->view());
    // As a batch has them: in two dimensions.
    const TensorPtr targets = From(layer.targets, Shape{1, kRows}, layer.target_dtype);
    const TensorPtr weights = From(kWeights, Shape{kRows, 1}, DType::kFloat32);
    const TensorPtr loss = From({kBefore}, Shape{1}, DType::kFloat32);
    const Var logits(z, record ? std::make_shared<TensorPtr>() : nullptr);
    layer.layer(tape, logits, targets->view(), weights->view(), kScale, loss->view());
    stream_->Synchronize();
    Results results;
    results.forward = Values(loss)[0];
    tape.Backward();
    stream_->Synchronize();
    results.loss = Values(loss)[0];
    if (record) {
      const std::vector<float> dz = Values(*logits.grad);
      results.dz.assign(dz.begin(), dz.end());
      EXPECT_EQ((*logits.grad)->view().shape, layer.logits);
    }
    return results;
  }
};

TEST_F(ClassLosses, GradientsAreWhatDifferencesSay) {
  for (const LossLayer& layer : kLosses) {
    SCOPED_TRACE(layer.logits.ToString());
    const TensorPtr z = Random(layer.logits, "z");
    const std::vector<float> floats = Values(z);
    const Doubles values(floats.begin(), floats.end());
    const Results got = Run(layer, z, /*record=*/true);
    const double tolerance = Tolerance(DType::kFloat32, kClasses);
    EXPECT_NEAR(got.loss, kBefore + layer.oracle(values), 4 * tolerance);
    EXPECT_TRUE(AllNear(got.dz, NumericGradient(layer.oracle, values), tolerance));
    EXPECT_EQ(Values(z), floats) << "somebody else may need the logits";
  }
}

// In the forward pass where that is all there is, in the backward pass otherwise.
TEST_F(ClassLosses, RunOnce) {
  for (const LossLayer& layer : kLosses) {
    SCOPED_TRACE(layer.logits.ToString());
    const TensorPtr z = Random(layer.logits, "z");
    const Results alone = Run(layer, z, /*record=*/false), with = Run(layer, z, /*record=*/true);
    EXPECT_EQ(with.forward, kBefore);
    EXPECT_EQ(alone.forward, with.loss);
    EXPECT_EQ(alone.loss, with.loss);
    EXPECT_NE(with.loss, kBefore);
  }
}

// The loss has the bits that it has alone.
TEST_F(ClassLosses, AddASecondSumInEvaluations) {
  for (const LossLayer& layer : kLosses) {
    SCOPED_TRACE(layer.logits.ToString());
    const TensorPtr z = Random(layer.logits, "z");
    const std::vector<float> floats = Values(z);
    const double want = layer.second({floats.begin(), floats.end()});
    EXPECT_GT(want, 0);
    const TensorPtr targets = From(layer.targets, Shape{kRows}, layer.target_dtype);
    const TensorPtr weights = From(kWeights, Shape{kRows}, DType::kFloat32);
    const auto run = [&](bool record) {
      Tape tape(*stream_, allocator_, journal_, record, Recompute::kNone);
      const TensorPtr loss = From({kBefore, 2}, Shape{2}, DType::kFloat32);
      const Var logits(z, record ? std::make_shared<TensorPtr>() : nullptr);
      layer.layer(tape, logits, targets->view(), weights->view(), kScale, loss->view());
      tape.Backward();
      stream_->Synchronize();
      return Values(loss);
    };
    const std::vector<float> got = run(/*record=*/false);
    EXPECT_EQ(got[0], Run(layer, z, /*record=*/false).loss);
    EXPECT_EQ(got[1], 2 + static_cast<float>(want));
    EXPECT_THROW(run(/*record=*/true), std::invalid_argument);
  }
}

TEST_F(ClassLosses, TheTapesScaleIsOfGradientsAlone) {
  for (const LossLayer& layer : kLosses) {
    SCOPED_TRACE(layer.logits.ToString());
    const TensorPtr z = Random(layer.logits, "z");
    const Results plain = Run(layer, z, true), scaled = Run(layer, z, true, 8);
    EXPECT_EQ(scaled.loss, plain.loss);
    for (size_t i = 0; i < plain.dz.size(); ++i) EXPECT_EQ(scaled.dz[i], 8 * plain.dz[i]) << i;
  }
}

TEST_F(ClassLosses, NothingStays) {
  for (const LossLayer& layer : kLosses) {
    const int before = allocator_.live();
    Run(layer, Random(layer.logits, "z"), true);
    EXPECT_EQ(allocator_.live(), before);
  }
}

}  // namespace
}  // namespace fsdp
