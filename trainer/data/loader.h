// From samples to batches. Both loaders are pure functions of their arguments: they hold no
// position, are safe for any number of threads and allocate nothing while they fill. A RowSource
// decides the contents of a row. RowThreads fill the rows, where a loader is given some.
//
// A global batch is dealt in order, micro-batch by micro-batch and rank by rank:
//   place = (micro_index * data_ranks + data_rank) * micro_batch_size + row.
// A place at or past the end of the batch is left over: a row of zeros, its weights among them.
// Samples is the RowSource of token sequences. Under `documents`, a document ends at its source's
// end-of-text token, eot. The position after one is 0 again; so attention in which token i looks at
// tokens [i - positions[i], i] stays within the document. The target of an eot, the first token of
// the next document, has weight 0: nothing before it tells. A row begins at position 0 wherever in
// a document its window begins.
//
// With another `packing` than windows a sample is a row of PackedRows, and its whole samples lie
// one behind the other, each from position 0 on. The target of a last token is 0, with weight 0.
// Places behind the last one are tokens 0, targets 0, weights 0 and positions 0: each sees itself
// alone.
#ifndef FSDP_TRAIN_TRAINER_DATA_LOADER_H_
#define FSDP_TRAIN_TRAINER_DATA_LOADER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/mixture.h"
#include "trainer/data/permutation.h"
#include "trainer/data/row_source.h"
#include "trainer/data/row_threads.h"
#include "trainer/data/samples/packed_rows.h"
#include "trainer/data/samples/packing.h"
#include "trainer/data/samples/sample_store.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

struct BatchPlanOptions {
  int64_t global_batch_size = 0;  // Samples of an optimizer step, over all ranks.
  int64_t micro_batch_size = 0;   // Rows of a Batch.
  int64_t data_ranks = 1;         // Data coordinates of the mesh, not the world size.
};

// Options for token sequences.
struct LoaderOptions {
  int64_t seq_len = 0;
  int64_t global_batch_size = 0;  // Samples of an optimizer step, over all ranks.
  int64_t micro_batch_size = 0;   // Rows of a Batch.
  int64_t data_ranks = 1;         // Data coordinates of the mesh, not the world size.
  int32_t vocab_size = 0;         // The model's.
  bool documents = false;         // For windows only. Every source then has an eot().
  Packing packing = Packing::kWindows;

  BatchPlanOptions batch_plan() const { return {global_batch_size, micro_batch_size, data_ranks}; }
};

struct WeightedSource {
  std::shared_ptr<const TokenSource> source;  // Windows; null with another packing.
  double weight = 1;
  std::shared_ptr<const SampleSource> whole = nullptr;  // Every other packing.

  std::string Describe() const { return source ? source->Describe() : whole->Describe(); }
};
using WeightedSources = std::vector<WeightedSource>;

// The deal above, without data.
class BatchPlan {
 public:
  explicit BatchPlan(const BatchPlanOptions& options);  // Throws std::invalid_argument.

  // Micro-batches of every rank: ceil(global_batch_size / (micro_batch_size * data_ranks)).
  int64_t MicroBatches() const;
  // Place in the global batch, which may be past its end. Throws std::invalid_argument for an
  // argument out of range.
  int64_t PlaceOf(int64_t micro_index, int64_t data_rank, int64_t row) const;

  const BatchPlanOptions& options() const { return options_; }

 private:
  BatchPlanOptions options_;
};

// Samples of a mixture, with which both loaders fill rows. Each source has the order of a
// SampleIndex or of PackedRows.
class Samples final : public RowSource {
 public:
  // The first source's order is that of `seed` itself, the others' are unrelated to it.
  Samples(WeightedSources sources, const LoaderOptions& options, bool shuffle, uint64_t seed);

  int64_t sources() const override { return std::ssize(sources_); }
  int64_t Rows(int64_t source) const override;
  const Mixture& mixture() const override { return mixture_; }
  std::string Describe() const override { return sources_[0].Describe(); }
  // Totals of one epoch: the tokens in its rows, and its whole samples; 0 with windows.
  int64_t Tokens(int64_t source) const;
  int64_t WholeSamples(int64_t source) const;

  struct Place {
    int64_t source;
    int64_t offset;  // The window's first token in that source.
    bool operator==(const Place&) const = default;
  };
  Place PlaceOf(int64_t sample) const;  // For windows only.
  // Tokens outside the vocabulary throw DataError with file, offset and sample (CheckRow).
  void Fill(int64_t sample, int64_t row, const Batch& out) const override;
  void CheckViews(const Batch& out, int64_t rows) const override;
  void Derive(const Batch& out) const override;
  // Whole samples know their targets. Under `documents` every rank reads a whole global batch: 0.5
  // ms for 512 x 1024 tokens of uint16 in the page cache, and a stat(2) a row, 1 us each.
  int64_t Targets(int64_t begin, int64_t end) const override;
  int64_t InputTokens(int64_t begin, int64_t end) const override;
  std::string WhyNoTargets(const std::string& of) const override;
  ShownSample Show(int64_t sample, const Batch& row) const override;
  Tally Count(int64_t source) const override;

 private:
  bool windows() const { return options_.packing == Packing::kWindows; }
  int64_t OfSamples(int64_t begin, int64_t end, bool targets) const;  // Else all tokens.
  struct RowViews;
  void FillWindow(int64_t sample, const RowViews& row) const;
  int64_t FillSample(int64_t sample, const RowViews& row) const;  // Returns its tokens.

  LoaderOptions options_;
  WeightedSources sources_;
  std::vector<SampleIndex> indexes_;  // With windows.
  std::vector<PackedRows> packed_;    // With every other packing.
  Mixture mixture_;
};

// Step s, counted from 1 as in metrics.jsonl, holds the samples [(s - 1) * G, s * G) of the
// mixture, G = global_batch_size.
class TrainLoader {
 public:
  // `seed`: of the samples' keys. Throws std::invalid_argument for options that make no sense.
  TrainLoader(std::shared_ptr<const RowSource> rows, const BatchPlanOptions& options,
              uint64_t seed);
  // A loader of token sequences. Also throws DataError for too little data.
  TrainLoader(WeightedSources sources, const LoaderOptions& options, bool shuffle, uint64_t seed);
  TrainLoader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options, bool shuffle,
              uint64_t seed)
      : TrainLoader(WeightedSources{{std::move(source)}}, options, shuffle, seed) {}

  // Threads for all batches to come. Other loaders may have the same ones.
  void FillWith(std::shared_ptr<RowThreads> threads) { threads_ = std::move(threads); }

  int64_t MicroBatches() const { return plan_.MicroBatches(); }
  // The global sample in a row, or kNoSample.
  int64_t SampleOf(int64_t step, int64_t micro_index, int64_t data_rank, int64_t row) const;
  // Fills `out`. May block on the disk. Throws as RowSource::CheckViews() and Fill() do.
  void MicroBatch(int64_t step, int64_t micro_index, int64_t data_rank, const Batch& out) const;
  // Targets of weight 1 in the step, over all ranks: T of design.md. A global batch is always full,
  // so windows without `documents` have T0 = global_batch_size * seq_len. Otherwise all ranks count
  // the same batch: see Samples::Targets(). Throws DataError where there is no target.
  int64_t TargetsOfStep(int64_t step) const;
  int64_t InputTokensOfStep(int64_t step) const;  // RowSource::InputTokens(), over all ranks.

  const RowSource& rows() const { return *rows_; }

 private:
  BatchPlan plan_;
  std::shared_ptr<const RowSource> rows_;
  std::shared_ptr<RowThreads> threads_;
  uint64_t seed_;
};

// The first batches * global_batch_size samples of a mixture, each source in order, or as many as
// there are before one source has no row left, for any number of ranks and any micro-batch size.
class EvalLoader {
 public:
  // `batches` >= 1. Throws as TrainLoader does, and DataError for less than a sample.
  EvalLoader(std::shared_ptr<const RowSource> rows, const BatchPlanOptions& options,
             int64_t batches);
  EvalLoader(WeightedSources sources, const LoaderOptions& options, int64_t batches);
  EvalLoader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options,
             int64_t batches)
      : EvalLoader(WeightedSources{{std::move(source)}}, options, batches) {}

  void FillWith(std::shared_ptr<RowThreads> threads) { threads_ = std::move(threads); }

  int64_t Batches() const;
  int64_t MicroBatches() const { return plan_.MicroBatches(); }
  // `batch` in [0, Batches()). Otherwise as in TrainLoader.
  int64_t SampleOf(int64_t batch, int64_t micro_index, int64_t data_rank, int64_t row) const;
  void MicroBatch(int64_t batch, int64_t micro_index, int64_t data_rank, const Batch& out) const;
  int64_t TargetsOfBatch(int64_t batch) const;  // Fewer than T0 in the last one, perhaps.
  int64_t Size() const { return count_; }       // Samples of all batches.
  int64_t Targets() const { return rows_->Targets(0, count_); }  // All batches'.

 private:
  void CheckBatch(int64_t batch) const;

  BatchPlan plan_;
  std::shared_ptr<const RowSource> rows_;
  std::shared_ptr<RowThreads> threads_;
  int64_t count_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_LOADER_H_
