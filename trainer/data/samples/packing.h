// How the tokens of a source come into rows: the recipe's data.packing and data.too_long.
// Tests: tests/trainer/data/samples/whole_samples_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_SAMPLES_PACKING_H_
#define FSDP_TRAIN_TRAINER_DATA_SAMPLES_PACKING_H_

namespace fsdp {

// kWindows: stretches of seq_len tokens, wherever documents begin (sample_index.h). kSamples: as
// many whole samples as fit (packed_rows.h). kNone: one whole sample.
enum class Packing { kWindows, kSamples, kNone };

// For a document longer than a row: an error, its first seq_len tokens alone, or nothing of it.
enum class TooLong { kError, kCut, kDrop };

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SAMPLES_PACKING_H_
