// From samples to batches. Both loaders are pure functions of their arguments: they hold no
// position, are safe for any number of threads and allocate nothing while they fill.
//
// A global batch is dealt in order, micro-batch by micro-batch and rank by rank:
//   place = (micro_index * data_ranks + data_rank) * micro_batch_size + row.
// A place at or past the end of the batch is left over: a row of tokens 0, targets 0 and weights 0.
#ifndef FSDP_TRAIN_TRAINER_DATA_LOADER_H_
#define FSDP_TRAIN_TRAINER_DATA_LOADER_H_

#include <cstdint>
#include <memory>

#include "trainer/data/batch.h"
#include "trainer/data/sample_index.h"
#include "trainer/data/token_source.h"

namespace fsdp {

struct LoaderOptions {
  int64_t seq_len = 0;
  int64_t global_batch_size = 0;  // Samples of an optimizer step, over all ranks.
  int64_t micro_batch_size = 0;   // Rows of a Batch.
  int64_t data_ranks = 1;         // Data coordinates of the mesh, not the world size.
  int32_t vocab_size = 0;         // Of the model.
};

inline constexpr int64_t kNoSample = -1;

// The deal above, without data.
class Deal {
 public:
  explicit Deal(const LoaderOptions& options);  // Throws std::invalid_argument.

  // Of every rank: ceil(global_batch_size / (micro_batch_size * data_ranks)).
  int64_t MicroBatches() const;
  // Place in the global batch, which may be past its end. Throws std::invalid_argument for an
  // argument out of range.
  int64_t PlaceOf(int64_t micro_index, int64_t data_rank, int64_t row) const;

  const LoaderOptions& options() const { return options_; }

 private:
  LoaderOptions options_;
};

// Step s, counted from 1 as in metrics.jsonl, holds the samples [(s - 1) * G, s * G) of the
// SampleIndex, G = global_batch_size.
class TrainLoader {
 public:
  // Throws DataError for too little data, std::invalid_argument for options that make no sense.
  TrainLoader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options, bool shuffle,
              uint64_t seed);

  int64_t MicroBatches() const { return deal_.MicroBatches(); }
  // The global sample in a row, or kNoSample.
  int64_t SampleOf(int64_t step, int64_t micro_index, int64_t data_rank, int64_t row) const;
  // Fills `out`. May block on the disk. Throws DataError with file and offset for a token outside
  // the vocabulary, std::invalid_argument for Views of another shape or dtype.
  void MicroBatch(int64_t step, int64_t micro_index, int64_t data_rank, const Batch& out) const;
  // Targets of weight 1 in the step, over all ranks: T of design.md. A global batch of text is
  // always full, so this is T0 = global_batch_size * seq_len.
  int64_t TargetsOfStep(int64_t step) const;

  const SampleIndex& index() const { return index_; }

 private:
  Deal deal_;
  std::shared_ptr<const TokenSource> source_;
  SampleIndex index_;
};

// The first batches * global_batch_size windows of a source in the order of the text, or all there
// are: the same windows for every number of ranks and every micro-batch size.
class EvalLoader {
 public:
  // `batches` >= 1. Throws as TrainLoader does.
  EvalLoader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options,
             int64_t batches);

  int64_t Batches() const;
  int64_t MicroBatches() const { return deal_.MicroBatches(); }
  // `batch` in [0, Batches()). Otherwise as in TrainLoader.
  int64_t SampleOf(int64_t batch, int64_t micro_index, int64_t data_rank, int64_t row) const;
  void MicroBatch(int64_t batch, int64_t micro_index, int64_t data_rank, const Batch& out) const;
  int64_t TargetsOfBatch(int64_t batch) const;  // Fewer than T0 in the last one, perhaps.
  int64_t Targets() const { return samples_ * deal_.options().seq_len; }

 private:
  void CheckBatch(int64_t batch) const;

  Deal deal_;
  std::shared_ptr<const TokenSource> source_;
  SampleIndex index_;
  int64_t samples_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_LOADER_H_
