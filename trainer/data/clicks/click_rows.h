// Rows of a click, for models that are fed them: numbers, ids, a label. A row is a pure function of
// seed and sample.
// Tests: tests/trainer/data/clicks/click_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_ROWS_H_
#define FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/clicks/click_store.h"
#include "trainer/data/mixture.h"
#include "trainer/data/row_source.h"

namespace fsdp {

// Clicks of a store, in the order of a run.
struct ClickSource {
  std::shared_ptr<const ClickStore> store;
  std::vector<int64_t> clicks;
  double weight = 1;
};

class ClickRows final : public RowSource {
 public:
  static ClickSource Whole(std::shared_ptr<const ClickStore> store);
  // The last floor(clicks x fraction) of an order drawn once for all runs, and the others, both in
  // the store's. Throws DataError if one side would be empty.
  struct Parts {
    ClickSource train, valid;
  };
  static Parts HoldOut(const ClickSource& all, double fraction);

  // IsOfClicks(spec), whose sizes are those of the stores' columns.
  ClickRows(const BatchSpec& spec, std::vector<ClickSource> sources, bool shuffle, uint64_t seed);

  const Mixture& mixture() const override { return mixture_; }
  int64_t sources() const override { return std::ssize(sources_); }
  int64_t Rows(int64_t source) const override {
    return std::ssize(sources_.at(static_cast<size_t>(source)).clicks);
  }
  std::string Describe() const override { return sources_[0].store->Describe(); }
  void CheckViews(const Batch& out, int64_t rows) const override;
  // Leaves an input alone whose view has no memory: a look-up of table rows a step ahead wants ids
  // alone.
  void Fill(int64_t sample, int64_t row, const Batch& out) const override;
  int64_t Targets(int64_t begin, int64_t end) const override { return end - begin; }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has no samples"; }
  ShownSample Show(int64_t sample, const Batch& row) const override;

 private:
  const BatchSpec spec_;
  const int64_t columns_, slots_;
  const std::vector<ClickSource> sources_;
  const Mixture mixture_;
  const bool shuffle_;
  const uint64_t seed_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_ROWS_H_
