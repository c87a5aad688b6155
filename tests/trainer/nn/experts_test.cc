#include "trainer/nn/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/on_tape.h"
#include "trainer/autograd/balance_options.h"
#include "trainer/autograd/tape.h"
#include "trainer/nn/matrix_of.h"
#include "trainer/nn/parameter.h"

namespace fsdp {
namespace {

constexpr int64_t kTokens = 4, kHidden = 3, kExperts = 3, kInner = 2;

class ExpertsTest : public testing::OnTape {
 protected:
  // A parameter with random values, and a gradient of zeros.
  Parameter& New(const std::string& name, const Shape& shape) {
    parameters_.push_back(std::make_unique<Parameter>(name, shape, Init{}, /*decay=*/false));
    values_[name] = Random(shape, name.c_str());
    grads_[name] = std::make_shared<Tensor>(allocator_, DType::kFloat32, shape);
    std::fill_n(grads_[name]->view().As<float>(), shape.NumElements(), 0.0f);
    parameters_.back()->Bind(values_[name]->view(), grads_[name]->view());
    return *parameters_.back();
  }
  float* ValuesOf(const std::string& name) { return values_.at(name)->view().As<float>(); }
  float GradientOf(const std::string& name, int64_t begin, int64_t count) {
    const float* const grad = grads_.at(name)->view().As<float>() + begin;
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::abs(grad[i]);
    return sum;
  }
  // Logits of which `expert`'s is the largest for every token of positive elements.
  void Favour(int64_t expert) {
    std::fill_n(ValuesOf("router"), kExperts * kHidden, 0.0f);
    std::fill_n(ValuesOf("router") + expert * kHidden, kHidden, 1.0f);
  }
  Var Positive(const char* name) {
    const TensorPtr x = Random({kTokens, kHidden}, name);
    for (int64_t i = 0; i < kTokens * kHidden; ++i) {
      x->view().As<float>()[i] = std::abs(x->view().As<float>()[i]) + 0.1f;
    }
    return {x, std::make_shared<TensorPtr>()};
  }

  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::map<std::string, TensorPtr> values_, grads_;
};

// Recomputation takes forward's choices, whatever its own logits say, and counts nothing again.
TEST_F(ExpertsTest, AChoiceIsMadeOnce) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    ExpertLayer layer{.router = &New("router", {kExperts, kHidden}), .pieces = {}};
    const Parameter& gate_up = New("gate_up", {kExperts * 2 * kInner, kHidden});
    layer.pieces = {{&gate_up, &New("down", {kExperts * kHidden, kInner})}};
    ModelBuffer tally("tally", Shape{TallyElements(kExperts)}, ModelBuffer::Kind::kTally);
    const TensorPtr counts = Random(tally.shape(), "counts");
    std::fill_n(counts->view().As<float>(), counts->view().NumElements(), 0.0f);
    tally.Bind(counts->view(), counts->view());
    layer.tally = &tally;
    int32_t lengths[] = {2, 2};
    float weights[] = {1, 1, 1, 1};
    TokenBatch batch;
    batch.lengths = {reinterpret_cast<std::byte*>(lengths), DType::kInt32, Shape{2}};
    batch.weights = {reinterpret_cast<std::byte*>(weights), DType::kFloat32, Shape{2, 2}};

    Tape tape(*stream_, allocator_, journal_, /*record=*/true, recompute);
    const MixtureBatch mixtures = BatchOfMixtures(tape, batch, 1, 1);
    Favour(0);
    const Var y =
        tape.Segment(0, Positive("x"), /*recomputable=*/true,
                     [&](Tape& t, const Var& in) { return Experts(t, in, in, layer, mixtures); });
    stream_->Synchronize();
    Favour(2);
    *y.grad = Random({kTokens, kHidden}, "dy");
    tape.Backward();
    stream_->Synchronize();
    constexpr int64_t kOfExpert = 2 * kInner * kHidden;
    EXPECT_GT(GradientOf("gate_up", 0, kOfExpert), 0);
    EXPECT_EQ(GradientOf("gate_up", kOfExpert, 2 * kOfExpert), 0);
    EXPECT_EQ(Values(counts)[0], kTokens);
    EXPECT_EQ(Values(counts)[2], 0);
  }
}

TEST_F(ExpertsTest, AGateMultipliesTheSharedExpert) {
  const GatedMlp mlp{&New("gate", {1, kHidden}), &New("gate_up", {2 * kInner, kHidden}),
                     &New("down", {kHidden, kInner})};
  Tape tape(*stream_, allocator_, journal_, /*record=*/false, Recompute::kNone);
  const Var x = Positive("x"), base = Positive("base");
  const Var y = GatedSharedExpert(tape, x, base, mlp);
  stream_->Synchronize();
  const auto at = [&](const std::string& name, int64_t row, int64_t cols, int64_t col) {
    return static_cast<double>(ValuesOf(name)[row * cols + col]);
  };
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (int64_t t = 0; t < kTokens; ++t) {
    const float* const row = x.view().As<float>() + t * kHidden;
    const auto dot = [&](const std::string& name, int64_t of) {
      double sum = 0;
      for (int64_t i = 0; i < kHidden; ++i) sum += at(name, of, kHidden, i) * row[i];
      return sum;
    };
    for (int64_t o = 0; o < kHidden; ++o) {
      double sum = 0;
      for (int64_t j = 0; j < kInner; ++j) {
        const double g = dot("gate_up", j);
        sum += at("down", o, kInner, j) * g * sigmoid(g) * dot("gate_up", kInner + j);
      }
      const double want = base.view().As<float>()[t * kHidden + o] + sigmoid(dot("gate", 0)) * sum;
      EXPECT_NEAR(y.view().As<float>()[t * kHidden + o], want, 1e-5);
    }
  }
}

// A weight without a code is read where it lies.
TEST_F(ExpertsTest, AMatrixIsTheWeightItself) {
  const Parameter& kernel = New("kernel", {2, 3, 5});
  Tape tape(*stream_, allocator_, journal_, /*record=*/false, Recompute::kNone);
  const ConstView matrix = MatrixOf(tape, kernel);
  EXPECT_EQ(matrix.data, kernel.value().data);
  EXPECT_EQ(matrix.shape, (Shape{2, 15}));
}

}  // namespace
}  // namespace fsdp
