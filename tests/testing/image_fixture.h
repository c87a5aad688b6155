// The samples of the fixtures of models that classify images (tools/reference/README.md): a row has
// the pixels, as 64 p + 128 of a pixel p, and the label.
#ifndef FSDP_TRAIN_TESTS_TESTING_IMAGE_FIXTURE_H_
#define FSDP_TRAIN_TESTS_TESTING_IMAGE_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/row_source.h"

namespace fsdp::testing {

// `spec`: pixels, label and weight. `weights`: one of each sample; empty: 1.
class ImageFixtureRows final : public RowSource {
 public:
  ImageFixtureRows(const BatchSpec& spec, std::vector<int32_t> samples, std::vector<float> weights)
      : pixels_(spec.inputs[0].sample.NumElements()),
        samples_(std::move(samples)),
        weights_(std::move(weights)) {}

  const Mixture& mixture() const override { return mixture_; }
  int64_t sources() const override { return 1; }
  int64_t Rows(int64_t) const override { return std::ssize(samples_) / (pixels_ + 1); }
  std::string Describe() const override { return "a fixture"; }
  void CheckViews(const Batch&, int64_t) const override {}

  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    float* const pixels = out.inputs[0].As<float>() + row * pixels_;
    int32_t& label = out.inputs[1].As<int32_t>()[row];
    float& weight = out.inputs[2].As<float>()[row];
    if (sample == kNoSample) {
      std::fill_n(pixels, pixels_, 0.0f);
      label = 0;
      weight = 0;
      return;
    }
    const int32_t* const from = samples_.data() + sample * (pixels_ + 1);
    for (int64_t i = 0; i < pixels_; ++i) pixels[i] = static_cast<float>(from[i] - 128) / 64;
    label = from[pixels_];
    weight = WeightOf(sample);
  }

  int64_t Targets(int64_t begin, int64_t end) const override {
    int64_t n = 0;
    for (int64_t sample = begin; sample < end; ++sample) n += WeightOf(sample) != 0 ? 1 : 0;
    return n;
  }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has none"; }

 private:
  float WeightOf(int64_t sample) const {
    return weights_.empty() ? 1.0f : weights_[static_cast<size_t>(sample)];
  }

  const int64_t pixels_;
  const std::vector<int32_t> samples_;
  const std::vector<float> weights_;
  const Mixture mixture_{std::vector<double>{1.0}, 0};
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_IMAGE_FIXTURE_H_
