// Images with a label, and a model of one matrix that scores them: the numbers that its evaluations
// give beside the loss, and the expected ones.
#ifndef FSDP_TRAIN_TESTS_TESTING_SCORED_IMAGES_H_
#define FSDP_TRAIN_TESTS_TESTING_SCORED_IMAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/autograd/tape.h"
#include "trainer/core/batch.h"
#include "trainer/data/synthetic/synthetic.h"
#include "trainer/nn/class_losses.h"
#include "trainer/nn/layers.h"
#include "trainer/nn/model.h"

namespace fsdp::testing {

// Images [kPixels] whose class is that of their largest pixel among the first kClasses; as clicks,
// the label is 1 if the first pixel is above 0.5.
inline constexpr int64_t kPixels = 6, kImageClasses = 3;

inline BatchSpec ImageSpec(bool clicks) {
  using Role = BatchInput::Role;
  const BatchInput label =
      clicks ? BatchInput{"label", DType::kFloat32, Shape{}, Role::kTarget}
             : BatchInput{"label", DType::kInt32, Shape{}, Role::kTarget, kImageClasses};
  return {.inputs = {{"image", DType::kFloat32, Shape{kPixels}},
                     label,
                     {"weight", DType::kFloat32, Shape{}, Role::kWeight}},
          .targets = 1};
}

inline int64_t LargestPixel(const float* image) {
  int64_t largest = 0;
  for (int64_t v = 1; v < kImageClasses; ++v) {
    if (image[v] > image[largest]) largest = v;
  }
  return largest;
}

class LabelledImages final : public RowSource {
 public:
  explicit LabelledImages(bool clicks)
      : clicks_(clicks), images_(ImageSpec(clicks), {{.seed = 5}}, /*seed=*/0) {}

  const Mixture& mixture() const override { return images_.mixture(); }
  int64_t sources() const override { return images_.sources(); }
  int64_t Rows(int64_t source) const override { return images_.Rows(source); }
  std::string Describe() const override { return images_.Describe(); }
  void CheckViews(const Batch& out, int64_t rows) const override { images_.CheckViews(out, rows); }
  int64_t Targets(int64_t begin, int64_t end) const override { return images_.Targets(begin, end); }
  std::string WhyNoTargets(const std::string& of) const override {
    return images_.WhyNoTargets(of);
  }
  // Fills a row that is left over, too: its weight alone takes it out.
  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    images_.Fill(sample, row, out);
    const float* const image = out.inputs[0].As<float>() + row * kPixels;
    if (clicks_) {
      out.inputs[1].As<float>()[row] = sample == kNoSample || image[0] > 0.5f ? 1.0f : 0.0f;
    } else {
      out.inputs[1].As<int32_t>()[row] = static_cast<int32_t>(LargestPixel(image));
    }
  }

 private:
  const bool clicks_;
  const SyntheticRows images_;
};

class ScoredImages final : public Model {
 public:
  ScoredImages(bool clicks, const EvalMetric* metric)
      : clicks_(clicks),
        metric_(metric),
        weight_("weight", Shape{clicks ? 1 : kImageClasses, kPixels}, Init{0, 0.3f}, true),
        bias_("bias", Shape{clicks ? 1 : kImageClasses}, Init{}, false) {
    segments_ = {{"scores", /*is_block=*/true, {&weight_, &bias_}}};
  }

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t) const override { return ImageSpec(clicks_); }
  const EvalMetric* eval_metric() const override { return metric_; }
  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override {
    const View image = batch.inputs[0], label = batch.inputs[1], weight = batch.inputs[2];
    tape.Segment(0, {}, /*recomputable=*/false, [&](Tape& t, const Var&) {
      const Var scores = Linear(t, FromBatch(t, image), weight_, linear_layout(), &bias_);
      (clicks_ ? BinaryLoss : ClassLoss)(t, scores, label, weight, scale, loss);
      return Var{};
    });
  }

 private:
  const bool clicks_;
  const EvalMetric* const metric_;
  Parameter weight_, bias_;
  std::vector<ModelSegment> segments_;
};

// The second sum over samples [first, last), in float64: of clicks their number, otherwise that of
// images whose class has the highest score.
inline double SecondSumOf(bool clicks, const std::vector<float>& weight,
                          const std::vector<float>& bias, int64_t first, int64_t last) {
  const BatchSpec spec = ImageSpec(clicks);
  std::vector<std::byte> bytes(static_cast<size_t>(BatchBytes(spec, 1)) + 64);
  void* at = bytes.data();
  size_t space = bytes.size();
  const Batch batch =
      CarveBatch(spec, 1, static_cast<std::byte*>(std::align(64, bytes.size() - 64, at, space)));
  const LabelledImages images(clicks);
  double sum = 0;
  for (int64_t sample = first; sample < last; ++sample) {
    images.Fill(sample, 0, batch);
    if (clicks) {
      sum += static_cast<double>(batch.inputs[1].As<float>()[0]);
      continue;
    }
    const float* const image = batch.inputs[0].As<float>();
    double scores[kImageClasses];
    int64_t highest = 0;
    for (int64_t v = 0; v < kImageClasses; ++v) {
      scores[v] = bias[v];
      for (int64_t i = 0; i < kPixels; ++i) {
        scores[v] += static_cast<double>(weight[v * kPixels + i]) * static_cast<double>(image[i]);
      }
      if (scores[v] > scores[highest]) highest = v;
    }
    sum += highest == batch.inputs[1].As<int32_t>()[0] ? 1 : 0;
  }
  return sum;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_SCORED_IMAGES_H_
