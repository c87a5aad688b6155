// The samples of the fixtures of models that read no sequences of tokens
// (tools/reference/README.md): each is a row of integers.
#ifndef FSDP_TRAIN_TESTS_TESTING_FIXTURE_ROWS_H_
#define FSDP_TRAIN_TESTS_TESTING_FIXTURE_ROWS_H_

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/row_source.h"

namespace fsdp::testing {

class FixtureRows : public RowSource {
 public:
  // `size`: integers of a sample. `targets`: of a sample. `weights`: one of each target; empty:
  // those of Unmasked().
  FixtureRows(int64_t size, int64_t targets, std::vector<int32_t> samples,
              std::vector<float> weights)
      : size_(size),
        targets_(targets),
        samples_(std::move(samples)),
        weights_(std::move(weights)) {}

  const Mixture& mixture() const final { return mixture_; }
  int64_t sources() const final { return 1; }
  int64_t Rows(int64_t) const final { return std::ssize(samples_) / size_; }
  std::string Describe() const final { return "a fixture"; }
  void CheckViews(const Batch&, int64_t) const final {}
  int64_t Targets(int64_t begin, int64_t end) const final {
    int64_t n = 0;
    for (int64_t i = begin * targets_; i < end * targets_; ++i) {
      n += WeightOf(i / targets_, i % targets_) != 0 ? 1 : 0;
    }
    return n;
  }
  std::string WhyNoTargets(const std::string& of) const final { return of + " has none"; }

 protected:
  // Null for kNoSample.
  const int32_t* Sample(int64_t sample) const {
    return sample == kNoSample ? nullptr : samples_.data() + sample * size_;
  }
  // 0 for kNoSample.
  float WeightOf(int64_t sample, int64_t target = 0) const {
    if (sample == kNoSample) return 0;
    return weights_.empty() ? Unmasked(Sample(sample), target)
                            : weights_[static_cast<size_t>(sample * targets_ + target)];
  }
  // The inputs get numbers from 0 to 255 as (number - 128) / 64, and 0 of no sample.
  static void PutNumbers(const int32_t* from, int64_t n, float* to) {
    for (int64_t i = 0; i < n; ++i) to[i] = from ? static_cast<float>(from[i] - 128) / 64 : 0.0f;
  }

 private:
  virtual float Unmasked(const int32_t* /*sample*/, int64_t /*target*/) const { return 1; }

  const int64_t size_, targets_;
  const std::vector<int32_t> samples_;
  const std::vector<float> weights_;
  const Mixture mixture_{std::vector<double>{1.0}, 0};
};

// Those of models that classify images: the pixels, and the label.
class ImageFixtureRows final : public FixtureRows {
 public:
  // `spec`: pixels, label and weight.
  ImageFixtureRows(const BatchSpec& spec, std::vector<int32_t> samples, std::vector<float> weights)
      : FixtureRows(spec.inputs[0].sample.NumElements() + 1, /*targets=*/1, std::move(samples),
                    std::move(weights)),
        pixels_(spec.inputs[0].sample.NumElements()) {}

  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    const int32_t* const from = Sample(sample);
    PutNumbers(from, pixels_, out.inputs[0].As<float>() + row * pixels_);
    out.inputs[1].As<int32_t>()[row] = from ? from[pixels_] : 0;
    out.inputs[2].As<float>()[row] = WeightOf(sample);
  }

 private:
  const int64_t pixels_;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_FIXTURE_ROWS_H_
