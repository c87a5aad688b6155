// A linear layer with an optional bias:   y = x W + b   (W as a matrix [in, out])
//
// x, dx: [rows, in], y, dy: [rows, out], fp32, bf16 or fp16, all of one dtype; b: [out] and W, as
// WeightLayout says, of that dtype or fp32; db and dW, like them, each of any of the three. Sums
// are fp32, and rounded when they are complete; the bias and the old values of dW and db are among
// their terms. Nothing is saved beyond x and W; no workspace. Cost: 2 rows in out FLOPs for each
// product and rows out for the bias; every operand once. Throws std::invalid_argument before
// anything is enqueued: dtypes, shapes, overlapping results.
//
// GELU is computed while a product's result is still in a cache. It is that of the rounded
// result: the same bits as GELU by itself.
#ifndef FSDP_TRAIN_TRAINER_OPS_LINEAR_H_
#define FSDP_TRAIN_TRAINER_OPS_LINEAR_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Overwrites y, which overlaps nothing else. y may be fp32 whatever x is: logits.
void LinearForward(Stream& stream, ConstView x, ConstView w, WeightLayout layout,
                   std::optional<ConstView> b, View y);

// The same onto a residual connection, which has y's shape and dtype, and is read once:
//   y = residual + x W + b
// The sum is written once, and rounded once: in fp32 it has the bits of a product followed by an
// addition. The sum and the next norm move 4 values an element: the residual read, the sum written,
// the sum read, the norm written. One kernel for sum and norm would move 5, two kernels 6.
void LinearResidualForward(Stream& stream, ConstView x, ConstView w, WeightLayout layout,
                           std::optional<ConstView> b, ConstView residual, View y);

// The same, followed by its activation:   u = x W + b,   y = gelu(u)
// u and y: [rows, out], both overwritten. 25 FLOPs per element more.
void LinearGeluForward(Stream& stream, ConstView x, ConstView w, WeightLayout layout,
                       std::optional<ConstView> b, View u, View y);

//   dx  = dy W^T              overwritten
//   dW += x^T dy              added to, so that micro-batches accumulate
//   db += sum_i dy[i, :]      added to
// dy may be fp32 whatever x is: gradients of logits. Each may be left out: dx for a layer that
// starts the network, dW and db for frozen parameters. x is read only for dW, W only for dx. The
// results overlap nothing else.
void LinearBackward(Stream& stream, ConstView x, ConstView w, WeightLayout layout, ConstView dy,
                    std::optional<View> dx, std::optional<View> dw, std::optional<View> db);

// The same where x = gelu(u). du, [rows, in], is the gradient of u, and takes the place of dx:
//   du = (dy W^T) gelu'(u)    overwritten
void LinearGeluBackward(Stream& stream, ConstView u, ConstView x, ConstView w, WeightLayout layout,
                        ConstView dy, View du, std::optional<View> dw, std::optional<View> db);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LINEAR_H_
