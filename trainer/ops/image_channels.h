// Ops on whole channels of images: their means over pixels (average pooling to one pixel), and a
// factor for each (squeeze and excitation: Hu et al. 2018, arXiv:1709.01507, section 3).
//
// x, y, dx, dy of images: [samples, ..., channels]; of channels: [samples, channels]; all fp32,
// bf16 or fp16, of one dtype. Sums over pixels are fp32, over 64 pixels at a time and then over
// these groups, in order, and rounded once. No workspace, nothing saved. Throws
// std::invalid_argument before anything is enqueued.
#ifndef FSDP_TRAIN_TRAINER_OPS_IMAGE_CHANNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_IMAGE_CHANNELS_H_

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

//   y[s, c] = mean_i x[s, i, c]     dx[s, i, c] = dy[s, c] / pixels, or += with `adds`
// Overwrites y; overwrites dx without `adds`.
void MeanPixelsForward(Stream& stream, ConstView x, View y);
void MeanPixelsBackward(Stream& stream, ConstView dy, View dx, bool adds);

//   y[s, i, c] = x[s, i, c] f[s, c]
//   dx[s, i, c] = dy[s, i, c] f[s, c]     df[s, c] = sum_i dy[s, i, c] x[s, i, c]
// Overwrites y, dx and df. dx may be dy itself.
void ScaleChannelsForward(Stream& stream, ConstView x, ConstView f, View y);
void ScaleChannelsBackward(Stream& stream, ConstView x, ConstView f, ConstView dy, View dx,
                           View df);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_IMAGE_CHANNELS_H_
