// Which samples share a row: a pure function of (lengths, seq_len, packing, shuffle, seed). No
// state: a resumed run needs its step and nothing else, and the world size does not enter.
//
// Packing::kSamples takes the samples in an order drawn from the seed (as they lie without
// `shuffle`), some thousand at a time: at least 4096, and as many as fill 1024 rows. It places them
// by falling length, each into the row where it leaves the least room; where no row has room, one
// begins (best-fit decreasing: Johnson 1974, doi:10.1137/0203025). Rows come in the order of their
// longest samples, so that the first rows are no choice of lengths; in a row, samples come in the
// order in which they were taken. Packing::kNone is one sample a row.
//
// Which samples share a row stays the same over the epochs, so every epoch has equally many rows;
// with `shuffle` each has an order of rows of its own. Epochs follow each other without a seam.
//
// Memory: 4 bytes a sample and 4 a row; while it packs, up to 80 more for each of those taken at a
// time. Time: O(n log n); 0.6 us a sample (10 million of 1 to 2048 tokens, one core of a 2-core
// Xeon virtual machine), once, when the run begins.
#ifndef FSDP_TRAIN_TRAINER_DATA_SAMPLES_PACKED_ROWS_H_
#define FSDP_TRAIN_TRAINER_DATA_SAMPLES_PACKED_ROWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/data/samples/packing.h"
#include "trainer/data/samples/sample_store.h"

namespace fsdp {

class PackedRows {
 public:
  // `packing`: not kWindows. Throws std::invalid_argument for a sample of no token or of more than
  // seq_len, DataError for more than 2^31 - 1 samples. `source` is read here alone.
  PackedRows(const SampleSource& source, int64_t seq_len, Packing packing, bool shuffle,
             uint64_t seed);

  int64_t Rows() const { return std::ssize(ends_); }  // In an epoch.
  int64_t Tokens() const { return tokens_; }          // In an epoch.
  // The samples of row i >= 0, counted from the start of the run.
  std::span<const int32_t> SamplesOf(int64_t i) const;

 private:
  bool shuffle_;
  uint64_t seed_;
  int64_t tokens_ = 0;
  std::vector<int32_t> samples_;  // Row by row.
  std::vector<int32_t> ends_;     // Each row's, in samples_.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SAMPLES_PACKED_ROWS_H_
