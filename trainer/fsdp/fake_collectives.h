// What stands in for communication with `fake_all_gather` and `fake_reduce`: as much memory is
// written, and nothing is sent. The numbers that come of it mean nothing.
// Tests: tests/trainer/engine/paper_runtime_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_FAKE_COLLECTIVES_H_
#define FSDP_TRAIN_TRAINER_FSDP_FAKE_COLLECTIVES_H_

#include "trainer/runtime/stream.h"

namespace fsdp {

// full [ranks x n] becomes `shard` [n] in every place; it may be one of them. One dtype.
void FakeAllGather(Stream& stream, ConstView shard, View full);
// shard [n] = slice `rank` of full [ranks x n], times ranks: rounded to shard's dtype, then scaled.
void FakeReduceScatter(Stream& stream, ConstView full, int rank, View shard);
// data *= ranks.
void FakeAllReduce(Stream& stream, int ranks, View data);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_FAKE_COLLECTIVES_H_
