// The output head and its softmax cross-entropy as one op over chunks of rows: the logits of all
// rows never exist at once.
//   l[i, v] = sum_c x[i, c] w[v, c]
//   nll[i]  = log(sum_v e^(l[i, v] - m[i])) + m[i] - l[i, targets[i]],   m[i] = max_v l[i, v]
//   loss   += scale sum_i weights[i] nll[i]
//
// x, dx: [rows, cols], fp32, bf16 or fp16, both of one dtype; w: [vocab, cols] (the token table
// itself where they are tied), of that dtype or fp32; dw: like w, of any of the three; weights:
// [rows], loss: [1], fp32; targets: [rows], int32. `scale` is the same for all rows, as 1 / T0.
// loss_scale: [1], fp32, optional: multiplies the gradients, and not the loss.
// A row of weight zero takes no part: its target is not read, its row of dx is exactly zero and it
// adds nothing to dw, provided that x is finite.
// Sums are fp32. The sum over the vocabulary is fp32 in blocks and float64 over blocks. The sum
// over rows is float64, in an order that `rows` alone decides (on the CPU the order of i). Logits
// are fp32 on the CPU and rounded to the dtype of w on CUDA, where g takes their place. g is
// rounded to the dtype of w; dx and dw are rounded to their own when their sums are complete. The
// results overlap nothing else.
//
// Cost: 2 rows cols vocab FLOPs a product (one forward, three with the gradient) and 4 per logit;
// every operand once. The logits of a chunk are not counted.
// Throws std::invalid_argument before anything is enqueued. Targets of weight lie in [0, vocab):
// the loader of a batch has checked it (data/check_row.h).
#ifndef FSDP_TRAIN_TRAINER_OPS_HEAD_LOSS_H_
#define FSDP_TRAIN_TRAINER_OPS_HEAD_LOSS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Adds to loss. For evaluation.
void HeadLossForward(Stream& stream, ConstView x, ConstView w, ConstView targets, ConstView weights,
                     float scale, View loss, View workspace);

// The same, and with p = softmax(l):
//   g[i, v] = loss_scale[0] scale weights[i] (p[i, v] - [v = targets[i]])
//   dx  = g w       overwritten
//   dw += g^T x     added to, so that micro-batches accumulate; left out for a frozen table
void HeadLossForwardBackward(Stream& stream, ConstView x, ConstView w, ConstView targets,
                             ConstView weights, float scale,
                             const std::optional<ConstView>& loss_scale, View loss, View dx,
                             std::optional<View> dw, View workspace);

// Rows of a chunk on this device (never kSim), at least 16. CPU: at most 1024 (512 where x has two
// bytes), and at most 256 MiB of logits. CUDA: at most 8192, and at most 4 GiB. The number depends
// on shape and dtypes alone, so the order of sums does not depend on threads.
int64_t HeadLossChunkRows(int64_t rows, int64_t vocab, DType x, DType w, DeviceType device);

// Bytes of `workspace` for both, with x and w of these dtypes: the logits of one chunk. The
// workspace starts at a multiple of 8.
int64_t HeadLossWorkspaceBytes(int64_t rows, int64_t vocab, DType x, DType w, DeviceType device);

// Bytes of `workspace` on top of those, where dw is given: dw's sum over several chunks in fp32, if
// dw has another dtype.
int64_t HeadLossDwWorkspaceBytes(int64_t rows, int64_t cols, int64_t vocab, DType x, DType w,
                                 DType dw, DeviceType device);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_HEAD_LOSS_H_
