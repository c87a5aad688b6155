// Bags of vectors: sums of the vectors that each bag names (the embedding bag of torch.nn, mode
// "sum").
//
//   out[r T + t, :] = sum over s in [first[t], first[t + 1]), in that order, of
//                     vectors[places[r, s], :] where places[r, s] >= 0; zeros where none is
//
// vectors [n, width], fp32 or bf16. places int32 [rows, slots], each below n; -1: absent. first
// int32 [T + 1], rising from 0 to slots: the bags of a row lie side by side. out and d [rows T,
// width], fp32, bf16 or fp16. Sums are fp32, rounded once. Nothing is saved; no workspace.
// Cost: an addition per element of a named vector; each named vector is read once.
// Every place, order and first is in its range: their maker has ensured it.
// Throws std::invalid_argument before anything is enqueued.
// Tests: tests/trainer/ops/bags_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_BAGS_H_
#define FSDP_TRAIN_TRAINER_OPS_BAGS_H_

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Overwrites out, which overlaps nothing else.
void PoolBags(Stream& stream, ConstView vectors, ConstView places, ConstView first, View out);

//   sums[places[r, s], :] += d[r T + t, :]     for every slot s of bag t that is not absent
// order int32 [rows slots] lists the slots r slots + s that are not absent: by place, and rising
// within a place; -1 behind the last of them. sums [n, width], fp32, overlap nothing else. Each of
// their elements is added to in this order, so its bits do not depend on the number of threads. On
// CUDA 256 slots or more of one place are added up by 16 rows of threads in turn, then in a tree.
void PoolBagsBackward(Stream& stream, ConstView d, ConstView places, ConstView order,
                      ConstView first, View sums);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_BAGS_H_
