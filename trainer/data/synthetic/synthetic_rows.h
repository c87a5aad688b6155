// Rows of any inputs that a model declares, drawn at random: no file, and nothing to learn but the
// noise. int32 are drawn evenly from their range, fp32 from a normal distribution, weights are 1.
// Sample i of an epoch is the same in every epoch.
#ifndef FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_ROWS_H_
#define FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/row_source.h"

namespace fsdp {

class SyntheticRows final : public RowSource {
 public:
  static constexpr int64_t kEpoch = int64_t{1} << 16;

  struct Source {
    uint64_t seed = 0;
    double weight = 1;
    int64_t first = 0, rows = kEpoch;  // A source's samples.
  };

  // `seed`: of the mixture. Throws std::invalid_argument for derived inputs that do not pass
  // CheckDerived(), for int32 without a range, and for no sources.
  SyntheticRows(const BatchSpec& spec, std::vector<Source> sources, uint64_t seed);

  const Mixture& mixture() const override { return mixture_; }
  int64_t sources() const override { return std::ssize(sources_); }
  int64_t Rows(int64_t source) const override { return sources_.at(source).rows; }
  std::string Describe() const override { return "source `synthetic`"; }
  void CheckViews(const Batch& out, int64_t rows) const override;
  void Fill(int64_t sample, int64_t row, const Batch& out) const override;
  void Derive(const Batch& batch) const override;
  int64_t Targets(int64_t begin, int64_t end) const override {
    return (end - begin) * spec_.targets;
  }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has no samples"; }

 private:
  const BatchSpec spec_;
  const std::vector<Source> sources_;
  const Mixture mixture_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_ROWS_H_
