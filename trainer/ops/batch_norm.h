// Batch norm (Ioffe and Szegedy 2015, arXiv:1502.03167), as torch.nn.BatchNorm2d, over the samples
// that count:
//   y[i, c] = w[c] (x[i, c] - mean[c]) r[c] + b[c],    r[c] = 1 / sqrt(var[c] + eps)
// and, where asked for, y = max(y, 0). In training mean and var are those of the batch, over all
// pixels of the samples whose weight is not 0, on this rank or on all of them.
//
// x, y, dx, dy: [samples, ..., channels], fp32, bf16 or fp16, all of one dtype; w, b: [channels],
// of that dtype or fp32; dw, db: [channels], of any of the three; weights: [samples], fp32. All is
// computed in fp32, whatever the dtypes, and rounded once. Sums are fp32 over up to 256 pixels of a
// sample, then float64 over these groups, in an order that the shape alone decides.
//
// A rank tells the others its part, fp32 [1 + 2 channels]: pixels counted, their mean, and their
// sum of squared differences from it. The parts of all ranks give the statistics, fp32 [1 + 2
// channels]: pixels counted, mean, r. Where no pixel counts r is 0, and y is b.
// Throws std::invalid_argument before anything is enqueued.
#ifndef FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_H_
#define FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Overwrites `part` with the part of x.
void BatchMoments(Stream& stream, ConstView x, ConstView weights, View part, View workspace);

// The running mean and variance of batches, each fp32 [channels]: r <- r + momentum (new - r),
// where new is the batch's mean, or its variance times n / (n - 1) for n > 1 pixels. A batch in
// which no pixel counts changes nothing.
struct RunningMoments {
  View mean, variance;
  float momentum;
};
// Overwrites `statistics` with those of parts [ranks, 1 + 2 channels], joined in the order of ranks
// by the formula of Chan, Golub and LeVeque 1979, in float64.
void JoinMoments(Stream& stream, ConstView parts, float eps, View statistics,
                 const std::optional<RunningMoments>& running);

// Overwrites `statistics` with the running mean and variance, and a count of 0 pixels.
void UseRunningMoments(Stream& stream, ConstView mean, ConstView variance, float eps,
                       View statistics);

// Overwrites y, which may be x itself.
void BatchNormForward(Stream& stream, ConstView x, ConstView statistics, ConstView w, ConstView b,
                      bool relu, View y);

// With h = (x - mean) r, and g = dy; with relu g = dy only where y > 0, else 0:
//   sums = (sum_i g[i, c], sum_i g[i, c] h[i, c])     fp32 [2, channels], of this rank, overwritten
//   db += the first, dw += the second; either may be left out
void BatchNormSums(Stream& stream, ConstView x, ConstView statistics, ConstView w, ConstView b,
                   bool relu, ConstView dy, std::optional<View> dw, std::optional<View> db,
                   View sums, View workspace);
// With n pixels counted, and sums over all ranks:
//   dx[i, c] = w r (g[i, c] - sums[0, c] / n - h[i, c] sums[1, c] / n)
// and in samples that do not count dx = w r g. Overwrites dx, which may be dy itself.
void BatchNormBackward(Stream& stream, ConstView x, ConstView weights, ConstView statistics,
                       ConstView w, ConstView b, bool relu, ConstView sums, ConstView dy, View dx);

// Bytes of `workspace` for x of this shape: two floats per channel for each piece of 256 pixels.
int64_t BatchNormWorkspaceBytes(const Shape& x);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_H_
