// A batch of inputs and targets by the names that models of an encoder and a decoder declare.
// Tests: tests/trainer/data/pairs/pair_batch_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_PAIRS_PAIR_BATCH_H_
#define FSDP_TRAIN_TRAINER_DATA_PAIRS_PAIR_BATCH_H_

#include <cstdint>
#include <span>

#include "trainer/core/batch.h"
#include "trainer/core/view.h"
#include "trainer/data/tokens/token_batch.h"

namespace fsdp {

// Pads, and begins a decoder's tokens.
inline constexpr int32_t kPadToken = 0;

// The inputs below for inputs of `length` tokens and targets of `target`, each below `vocab_size`.
BatchSpec PairInputs(int64_t length, int64_t target, int64_t vocab_size);
bool IsOfPairs(const BatchSpec& spec);

// A batch of PairInputs(). encoder: tokens [rows, length] and their order. decoder: all that a
// TokenBatch has, [rows, target]; its tokens are the targets moved right behind kPadToken, its
// positions 0, 1, ... lengths: int32 [rows], the inputs' lengths; padding lies behind. Weights are
// 0 behind a target's end.
struct PairBatch {
  // Throws std::invalid_argument for another batch.
  explicit PairBatch(const Batch& batch);

  TokenBatch encoder, decoder;
  View lengths;
};

// The first rows of a batch, with the first `tokens` tokens of targets and of what the decoder is
// fed, [rows, tokens] without gaps: one token after the other, of an input that is there.
Batch DecoderPart(const Batch& batch, int64_t rows, int64_t tokens);

// A row of the batch, in host memory.
struct PairRow {
  std::span<int32_t> input, decoder, target;
  std::span<float> weights;
  int32_t& length;
};
PairRow RowOf(const Batch& batch, int64_t row);

// Where input and target, of so many tokens, have been written: pads them, and fills the rest.
void FinishRow(const PairRow& row, int64_t input, int64_t target);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_PAIRS_PAIR_BATCH_H_
