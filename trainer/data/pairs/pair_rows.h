// Rows of an input and a target, for models of an encoder and a decoder (pair_batch.h): texts that
// have lost spans, and pairs of texts. Sample i of the mixture is the same on any number of ranks.
// Tests: tests/trainer/data/pairs/pair_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_PAIRS_PAIR_ROWS_H_
#define FSDP_TRAIN_TRAINER_DATA_PAIRS_PAIR_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/mixture.h"
#include "trainer/data/pairs/span_corruption.h"
#include "trainer/data/permutation.h"
#include "trainer/data/row_source.h"
#include "trainer/data/samples/packing.h"
#include "trainer/data/samples/sample_store.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

struct PairLengths {
  int64_t input = 0, target = 0;  // Tokens of a row.
  int32_t vocab_size = 0;         // The model's.
};

class PairRowSource : public RowSource {
 public:
  const Mixture& mixture() const override { return mixture_; }
  void CheckViews(const Batch& out, int64_t rows) const override;
  void Fill(int64_t sample, int64_t row, const Batch& out) const override;
  void Derive(const Batch& out) const override;
  ShownSample Show(int64_t sample, const Batch& row) const override;

 protected:
  PairRowSource(const PairLengths& lengths, const std::vector<double>& weights, uint64_t seed);

  virtual void FillRow(int64_t sample, const PairRow& row) const = 0;
  virtual std::string Where(int64_t sample) const = 0;  // "a.txt, byte 17".

  const PairLengths lengths_;

 private:
  const BatchSpec spec_;
  const Mixture mixture_;
};

// Texts of spans.length tokens, wherever documents begin, in the order of a SampleIndex. The spans
// that a text loses are drawn anew in every epoch.
class SpanRows final : public PairRowSource {
 public:
  struct Source {
    std::shared_ptr<const TokenSource> tokens;
    double weight = 1;
    int32_t eot = 0;
  };
  // Throws DataError for a source of less than a text.
  SpanRows(std::vector<Source> sources, const PairLengths& lengths, const SpanLengths& spans,
           std::vector<int32_t> sentinels, bool shuffle, uint64_t seed);

  int64_t sources() const override { return std::ssize(sources_); }
  int64_t Rows(int64_t source) const override {
    return indexes_.at(static_cast<size_t>(source)).Windows();
  }
  std::string Describe() const override { return sources_[0].tokens->Describe(); }
  int64_t Targets(int64_t begin, int64_t end) const override {
    return (end - begin) * spans_.target();
  }
  int64_t InputTokens(int64_t begin, int64_t end) const override {
    return (end - begin) * (spans_.input() + spans_.target());
  }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has no samples"; }
  Tally Count(int64_t source) const override {
    return {{"samples", Rows(source)},
            {"tokens", sources_.at(static_cast<size_t>(source)).tokens->size()}};
  }

 private:
  void FillRow(int64_t sample, const PairRow& row) const override;
  std::string Where(int64_t sample) const override;

  const std::vector<Source> sources_;
  const SpanLengths spans_;
  const std::vector<int32_t> sentinels_;
  const uint64_t seed_;
  std::vector<SampleIndex> indexes_;
};

// The pairs of a store, whose targets are the tokens of weight 1, in an order drawn for each epoch.
class PairRows final : public PairRowSource {
 public:
  // Samples of a store that fit, or are cut to.
  struct Fitted {
    std::shared_ptr<const SampleStore> store;
    std::vector<int32_t> samples;
    int64_t longer = 0;  // Cut, or left out.
    bool cuts = false;
    int64_t longest_input = 0, longest_target = 0;  // Tokens, of all samples of the store.
  };
  // Throws DataError where none is left, and under TooLong::kError for one that does not fit, with
  // its place.
  static Fitted Fit(std::shared_ptr<const SampleStore> store, const PairLengths& lengths,
                    TooLong too_long);
  // Those that begin in the last floor(tokens x fraction) of the store, and all before. Throws
  // DataError if one side would be empty.
  struct Parts {
    Fitted train, valid;
  };
  static Parts HoldOut(const Fitted& all, double fraction);

  struct Source {
    Fitted pairs;
    double weight = 1;
  };
  PairRows(std::vector<Source> sources, const PairLengths& lengths, bool shuffle, uint64_t seed);

  int64_t sources() const override { return std::ssize(sources_); }
  int64_t Rows(int64_t source) const override {
    return std::ssize(sources_.at(static_cast<size_t>(source)).pairs.samples);
  }
  std::string Describe() const override { return sources_[0].pairs.store->Describe(); }
  int64_t Targets(int64_t begin, int64_t end) const override;
  int64_t InputTokens(int64_t begin, int64_t end) const override;
  std::string WhyNoTargets(const std::string& of) const override { return of + " has no samples"; }
  Tally Count(int64_t source) const override;

 private:
  struct Place {
    const SampleStore& store;
    int64_t sample, input, target;  // Tokens of both as they are in the store.
  };
  Place PlaceOf(int64_t sample) const;
  void FillRow(int64_t sample, const PairRow& row) const override;
  std::string Where(int64_t sample) const override;

  const std::vector<Source> sources_;
  const bool shuffle_;
  const uint64_t seed_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_PAIRS_PAIR_ROWS_H_
