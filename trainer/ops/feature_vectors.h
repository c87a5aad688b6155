// Ops on a sample's feature vectors, which are the rows of one matrix for each sample (Zhang et al.
// 2022, arXiv:2203.11014, section 3): vectors are joined, transposed so that a linear layer mixes
// them, and multiplied by each other.
//
// All matrices of an op have one dtype: fp32, bf16 or fp16. Results are computed in fp32 and
// rounded once. The rows of a sample follow each other: `samples`, at least 1, divides them.
// Outputs are overwritten, and overlap nothing else. No result depends on the number of threads. No
// workspace. Throws std::invalid_argument before anything is enqueued.
#ifndef FSDP_TRAIN_TRAINER_OPS_FEATURE_VECTORS_H_
#define FSDP_TRAIN_TRAINER_OPS_FEATURE_VECTORS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// y[r] = (a[r], b[r]): the columns of both. a: [rows, p]; b: [rows, q]; y: [rows, p + q].
void JoinColumns(Stream& stream, ConstView a, ConstView b, View y);
// The way back: a and b become those columns of y.
void SplitColumns(Stream& stream, ConstView y, View a, View b);

// y[s, j, i] = x[s, i, j]. x: [samples * n, cols]; y: [samples * cols, n]. With the shapes
// exchanged it is its own backward.
void SwapVectors(Stream& stream, ConstView x, int64_t samples, View y);

// The products of all pairs of a sample's n vectors: vector i, from 1 on, with those before it:
//   y[s, i (i - 1) / 2 + j] = scale x[s, i] . x[s, j]     for j < i
// x: [samples * n, cols]; y: [samples, n (n - 1) / 2]; n >= 2. Sums over columns in order.
// 2 cols FLOPs a pair.
void PairDotsForward(Stream& stream, ConstView x, float scale, View y);
//   dx[s, i] = scale sum over j != i of dy[s, pair of i and j] x[s, j]     in the order of j
// dx: like x. 4 cols FLOPs a pair.
void PairDotsBackward(Stream& stream, ConstView x, float scale, ConstView dy, View dx);

// y = a b, element by element; da = dy b, db = dy a. All have one number of elements, in any shape.
void MultiplyForward(Stream& stream, ConstView a, ConstView b, View y);
void MultiplyBackward(Stream& stream, ConstView a, ConstView b, ConstView dy, View da, View db);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_FEATURE_VECTORS_H_
