// A batch of token sequences by the names that models of them declare.
// Tests: tests/trainer/data/loader_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_BATCH_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_BATCH_H_

#include <cstdint>

#include "trainer/core/batch.h"
#include "trainer/core/view.h"

namespace fsdp {

// The inputs below for sequences of `length` tokens, each below `vocab_size`: every token has a
// target. `lengths`: with the numbers of tokens.
BatchSpec TokenInputs(int64_t length, int64_t vocab_size, bool lengths = false);

// All [rows, length], except the keys, `order` and `lengths`.
struct TokenBatch {
  TokenBatch() = default;
  // A batch of TokenInputs(). Throws std::invalid_argument for another.
  explicit TokenBatch(const Batch& batch);

  View tokens;   // int32.
  View targets;  // int32: the token after each token.
  View weights;  // fp32: 1 for a target that counts; 0 in rows left over, and across documents.
  // int32: each token's position in its document's part of the row: 0 at the row's begin, then one
  // more from token to token, or 0 where another document begins. Attention stops there.
  View positions;
  // int32 [rows * length]: the indexes of the tokens, sorted by token; equal tokens keep their
  // order. A table's gradient can so be added up token by token, without atomics, on any number of
  // threads.
  View order = {};
  View lengths = {};  // int32 [rows]: the row's tokens; padding follows them. No data: not asked.
  View sample_keys = {};  // Batch's.
};

// Writes the number of the row's tokens, where that is asked.
inline void SetLength(const TokenBatch& batch, int64_t row, int64_t tokens) {
  if (batch.lengths.data == nullptr) return;
  batch.lengths.As<int32_t>()[row] = static_cast<int32_t>(tokens);
}

// Fills `order` where the tokens are there, in the host's memory.
void OrderTokens(const TokenBatch& batch);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENS_TOKEN_BATCH_H_
