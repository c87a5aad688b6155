// Replacements for communication with `fake_all_gather` and `fake_reduce`: they write as much
// memory and send nothing. The resulting numbers mean nothing.
// Tests: tests/trainer/engine/paper_runtime_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_FAKE_COLLECTIVES_H_
#define FSDP_TRAIN_TRAINER_FSDP_FAKE_COLLECTIVES_H_

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Copies `shard` [n] to every place of `full` [ranks x n]; `shard` may be one of the places. One
// dtype.
void FakeAllGather(Stream& stream, ConstView shard, View full);
// shard [n] = slice `rank` of full [ranks x n], times ranks: rounded to shard's dtype, then scaled.
void FakeReduceScatter(Stream& stream, ConstView full, int rank, View shard);
// data *= ranks.
void FakeAllReduce(Stream& stream, int ranks, View data);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_FAKE_COLLECTIVES_H_
