// Rows of whatever a model is fed, drawn at random, in which a test may change what it likes.
#ifndef FSDP_TRAIN_TESTS_TESTING_CHANGED_ROWS_H_
#define FSDP_TRAIN_TESTS_TESTING_CHANGED_ROWS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "trainer/data/row_source.h"
#include "trainer/data/synthetic/synthetic.h"

namespace fsdp::testing {

class ChangedRows final : public RowSource {
 public:
  using Change = std::function<void(int64_t sample, int64_t row, const Batch&)>;
  ChangedRows(const BatchSpec& spec, Change change, SyntheticRows::Source source = {.seed = 5})
      : drawn_(spec, {source}, /*seed=*/0), change_(std::move(change)) {}

  const Mixture& mixture() const override { return drawn_.mixture(); }
  int64_t sources() const override { return drawn_.sources(); }
  int64_t Rows(int64_t source) const override { return drawn_.Rows(source); }
  std::string Describe() const override { return drawn_.Describe(); }
  void CheckViews(const Batch& out, int64_t rows) const override { drawn_.CheckViews(out, rows); }
  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    drawn_.Fill(sample, row, out);
    if (sample != kNoSample) change_(sample, row, out);
  }
  void Derive(const Batch& batch) const override { drawn_.Derive(batch); }
  int64_t Targets(int64_t begin, int64_t end) const override { return drawn_.Targets(begin, end); }
  std::string WhyNoTargets(const std::string& of) const override { return of; }

 private:
  const SyntheticRows drawn_;
  const Change change_;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_CHANGED_ROWS_H_
