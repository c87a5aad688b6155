// Clicks that are drawn from a known function, so that the best possible loss is known, too.
//
// Each of a click's n columns is a vector of kFactors numbers. A dense column's is its number x,
// drawn from the standard normal distribution, times a vector of the column. A categorical one's is
// the sum of its ids' vectors over sqrt(bag); an id is drawn evenly from the rows of its table, and
// a cell has one of them where the bag is 1, else 0 to bag. All vectors are normal, those of
// columns and ids drawn once and for all. With v[c] that of column c, counted round,
//   first = sum_c v[c][0] / sqrt(n)     second = sum_c sum_k v[c][k] v[c+1][k] / sqrt(n kFactors)
//   third = sum_c sum_k v[c][k] v[c+1][k] v[c+3][k] / sqrt(n kFactors)
//   z     = -1 + 0.3 first + 1.5 second + 0.8 third
// the label is 1 with the probability p = 1 / (1 + exp(-z)), and no model's expected loss is below
// the mean of p's entropy.
// Tests: tests/trainer/data/clicks/synthetic_clicks_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CLICKS_SYNTHETIC_CLICKS_H_
#define FSDP_TRAIN_TRAINER_DATA_CLICKS_SYNTHETIC_CLICKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/core/philox.h"
#include "trainer/data/clicks/click_store.h"

namespace fsdp {

class SyntheticClicks final : public ClickStore {
 public:
  static constexpr int kFactors = 2;

  // `samples`: each number draws other clicks of the one function.
  SyntheticClicks(ClickColumns columns, int64_t size, uint64_t samples);

  int64_t size() const override { return size_; }
  float Read(int64_t i, std::span<float> dense, std::span<int32_t> ids) const override;
  std::string Describe() const override { return "planted clicks"; }
  std::vector<DataFile> Files() const override { return {}; }
  const ClickColumns& columns() const override { return columns_; }
  std::vector<std::string> Names() const override;  // "number 0", "ids 0".
  std::optional<double> Probability(int64_t i) const override;

 private:
  // The probability of label 1 of click i; fills both where they are not empty.
  double Draw(int64_t i, std::span<float> dense, std::span<int32_t> ids) const;

  const ClickColumns columns_;
  const int64_t size_;
  const uint64_t samples_;
  std::vector<RandomStream> vectors_;  // Each column's.
};

// The evaluation of the function itself, on average over labels. entropy: its mean entropy in nats.
// normalized: the entropy divided by the nats of always predicting the mean probability.
struct ClickFloor {
  double entropy = 0, normalized = 0;
};
// The floor of these clicks, all of which have a probability.
ClickFloor FloorOf(const ClickStore& store, std::span<const int64_t> clicks);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CLICKS_SYNTHETIC_CLICKS_H_
