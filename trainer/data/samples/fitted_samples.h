// The samples of a store that fit into a row, whole.
// Tests: tests/trainer/data/samples/fitted_samples_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_SAMPLES_FITTED_SAMPLES_H_
#define FSDP_TRAIN_TRAINER_DATA_SAMPLES_FITTED_SAMPLES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/samples/packing.h"
#include "trainer/data/samples/sample_store.h"

namespace fsdp {

class FittedSamples : public SampleSource {
 public:
  // Samples without a target are left out. Keeps 4 bytes a sample. Throws DataError where nothing
  // is left, and under TooLong::kError for samples of more than seq_len tokens: with the place of
  // the first.
  FittedSamples(std::shared_ptr<const SampleStore> store, int64_t seq_len, TooLong too_long);

  struct Counts {
    std::string noun;         // "document".
    int64_t samples = 0;      // All in the store, these included:
    int64_t untrained = 0;    // no target, left out;
    int64_t longer = 0;       // longer than seq_len, cut or dropped,
    int64_t lost_tokens = 0;  // and the tokens that this cost.
    // Longer ones left out because the cut leaves them no target, and their tokens.
    int64_t emptied = 0, emptied_tokens = 0;
    int64_t longest = 0;  // Tokens of the longest sample in the store.
  };
  const Counts& counts() const { return kept_->counts; }

  // The samples that begin in the last floor(tokens * fraction) tokens of the store, and all before
  // them. Wants 0 < fraction < 1; throws DataError if one side would be empty.
  struct Parts;
  Parts HoldOut(double fraction) const;

  int64_t size() const override { return end_ - begin_; }
  int32_t Length(int64_t i) const override;
  int64_t Targets(int64_t i) const override { return store_->Targets(At(i), Length(i)); }
  std::string Describe() const override;
  Tally Count() const override;
  void Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const override;
  TokenPlace PlaceOf(int64_t i, int64_t token) const override {
    return store_->PlaceOf(At(i), token);
  }

 private:
  struct Kept {
    int64_t seq_len = 0;
    TooLong too_long = {};
    std::vector<int32_t> samples;  // Indexes in the store.
    Counts counts;
  };
  FittedSamples(const FittedSamples& all, int64_t begin, int64_t end);
  int64_t At(int64_t i) const { return kept_->samples[static_cast<size_t>(begin_ + i)]; }

  std::shared_ptr<const SampleStore> store_;
  std::shared_ptr<const Kept> kept_;  // For the whole store.
  int64_t begin_ = 0, end_ = 0;       // The part of kept_ that this has.
};

struct FittedSamples::Parts {
  std::shared_ptr<const SampleSource> train, valid;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SAMPLES_FITTED_SAMPLES_H_
