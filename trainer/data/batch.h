// What a forward pass is fed.
// Tests: tests/trainer/data/loader_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_BATCH_H_
#define FSDP_TRAIN_TRAINER_DATA_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "trainer/core/argsort.h"
#include "trainer/core/view.h"

namespace fsdp {

// A micro-batch. All [rows, seq_len] but for the keys.
struct Batch {
  View tokens;   // int32.
  View targets;  // int32: the token after each token.
  View weights;  // fp32: 1 for a target that counts; 0 in rows left over, and across documents.
  // int32: of each token in its document, as far as it lies in the row: 0 at the row's begin, then
  // one more from token to token, or 0 where another document begins. Attention stops there.
  View positions;
  // int32 [rows, 2]: 64 bits, the low word first, that name the row's sample for random numbers: of
  // the run's seed and the global sample alone.
  View sample_keys = {};
  // int32 [rows * seq_len]: the places of the tokens by token, those of one token in their order.
  // So a table's gradient is added up token by token, without atomics, on any number of threads.
  View order = {};
  bool documents = true;  // A row may have several: without, positions count through.
};

// Fills `order` where the tokens are there, in the host's memory.
inline void OrderTokens(const Batch& batch) {
  const auto all = [](const View& view) {
    return std::span(view.As<int32_t>(), static_cast<size_t>(view.NumElements()));
  };
  Argsort(all(batch.tokens), all(batch.order));
}

template <typename Visit>
void ForEachAddress(Batch& b, const Visit& visit) {
  for (View* view : {&b.tokens, &b.targets, &b.weights, &b.positions, &b.sample_keys, &b.order}) {
    visit(*view);
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_BATCH_H_
