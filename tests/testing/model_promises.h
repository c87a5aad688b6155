// Promises that hold for every model's training, whatever it is fed: a few short runs each.
#ifndef FSDP_TRAIN_TESTS_TESTING_MODEL_PROMISES_H_
#define FSDP_TRAIN_TESTS_TESTING_MODEL_PROMISES_H_

#include "tests/testing/tiny_run.h"

namespace fsdp::testing {

// Promise 1 of docs/design.md, section 5, at worlds 1 and 3.
void ExpectStrategyAndRecomputationChangeNoBit(TinyRun run);
void ExpectOffloadChangesNoBit(TinyRun run);
// `outside: root`, with slots and from a caching allocator, at a world of 2. The gradient's norm
// agrees to rounding: its squares are added unit by unit.
void ExpectTheRootChangesNoBit(TinyRun run);
// Worlds and micro-batches agree with one rank to rounding, dropout included.
void ExpectRanksAndMicroBatchesAgree(TinyRun run);
// Moved by h along its gradient g, the loss rises by h |g|.
void ExpectGradientOfDifferences(TinyRun run);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_MODEL_PROMISES_H_
