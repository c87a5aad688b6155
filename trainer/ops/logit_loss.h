// Losses of logits that exist in memory. (The head of a language model has a loss that never holds
// them all: head_loss.h.)
// Tests: tests/trainer/ops/class_loss_test.cc
// Tests: tests/trainer/ops/binary_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_
#define FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Softmax cross-entropy of logits as a linear layer with a bias makes them.
//   nll[r]   = log(sum_v e^(z[r, v] - m[r])) + m[r] - z[r, targets[r]],   m[r] = max_v z[r, v]
//   loss    += scale sum_r weights[r] nll[r]
//   dz[r, v] = loss_scale[0] scale weights[r] (e^(z[r, v]) / sum_u e^(z[r, u]) - [v = targets[r]])
//
// z, dz: [rows, classes], fp32, bf16 or fp16, both of one dtype; targets: [rows], int32; weights:
// [rows], loss: [1], fp32. `scale` is the same for all rows, as 1 / T0. loss_scale: [1], fp32,
// optional: multiplies the gradients, and not the loss. Formulas: PyTorch's cross_entropy with
// reduction="sum" of weighted rows, and its derivative.
//
// The sum over classes is fp32 in blocks, and float64 over blocks. The sum over rows is float64, in
// an order that `rows` alone decides. dz is computed in fp32 and rounded once.
//
// A row of weight zero takes no part, whatever its logits; its target is not read, and its row of
// dz is zero. In other rows a logit of minus infinity has no share, and as the target's it makes
// the loss infinite. A NaN, a plus infinity, or nothing but minus infinities make the loss and the
// row of dz NaN. Finite logits lie within 2^127.
//
// Cost: 4 FLOPs a logit; every operand once. Forward saves nothing: the gradient is made with the
// loss. Throws std::invalid_argument before anything is enqueued. Targets of weight lie in [0,
// classes): the loader of a batch has checked it.

// Adds to loss. For evaluation.
void ClassLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                      float scale, View loss, View workspace);

// The same, and overwrites dz, which may be z itself.
void ClassLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                              float scale, const std::optional<ConstView>& loss_scale, View loss,
                              View dz, View workspace);

// correct[0] += sum of weights[r] over the rows whose first highest logit is the target's:
//   z[r, v] < z[r, targets[r]] for v < targets[r],   z[r, v] <= z[r, targets[r]] for all v
// So among equal logits the lowest class counts, as in numpy.argmax, and a row with a NaN is never
// correct. Operands as above; correct: [1], fp32. Adds in float64 and rounds once: a count is exact
// up to 2^24. 2 FLOPs a logit.
void CountCorrectClasses(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                         View correct, View workspace);

// Bytes of `workspace` for all three, on every device: the rows' terms in float64. It starts at a
// multiple of 8.
int64_t ClassLossWorkspaceBytes(int64_t rows);

// Binary cross-entropy of logits:
//   l[r]   = max(z[r], 0) - z[r] t[r] + log(1 + e^-|z[r]|)
//   loss  += scale sum_r weights[r] l[r]
//   dz[r]  = loss_scale[0] scale weights[r] (s(z[r]) - t[r]),   s(z) = 1 / (1 + e^-z)
//
// z, dz: [rows], fp32, bf16 or fp16, both of one dtype; targets t: [rows], fp32, in [0, 1];
// weights: [rows], loss: [1], fp32. `scale` is the same for all rows, as 1 / T0. loss_scale: [1],
// fp32, optional: multiplies the gradients, and not the loss. Formulas: PyTorch's
// binary_cross_entropy_with_logits with reduction="sum" of weighted rows, and its derivative.
//
// s - t is computed as s (1 - t) - (1 - s) t, and both parts of s through e^-|z|: nothing cancels
// where t is 0 or 1. The sum over rows is float64, over groups of 256 rows and then over groups, in
// an order that `rows` alone decides. dz is computed in fp32 and rounded once.
//
// A row of weight zero takes no part, whatever its logit and its target: its dz is zero. In another
// row a NaN makes the loss and the row's dz NaN; an infinite logit makes the loss infinite or NaN,
// and its dz is that of a large one.
//
// Cost: 40 FLOPs a row; every operand once. Forward saves nothing: the gradient is made with the
// loss. Throws std::invalid_argument before anything is enqueued. Targets lie in [0, 1]: the loader
// of a batch has checked it.

// Adds to loss. For evaluation.
void BinaryLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                       float scale, View loss, View workspace);

// The same, and overwrites dz, which may be z itself.
void BinaryLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                               float scale, const std::optional<ConstView>& loss_scale, View loss,
                               View dz, View workspace);

// sum[0] += sum_r weights[r] targets[r], without the rows of weight zero. Operands as above; sum:
// [1], fp32. Adds in float64 and rounds once: a count of ones is exact up to 2^24. 2 FLOPs a row.
void SumOfTargets(Stream& stream, ConstView targets, ConstView weights, View sum, View workspace);

// Bytes of `workspace` for all three, on every device: the groups' sums in float64. It starts at a
// multiple of 8.
int64_t BinaryLossWorkspaceBytes(int64_t rows);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_
