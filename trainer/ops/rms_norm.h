// RMSNorm over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467), with eps:
//   r[i] = 1 / sqrt(mean_j x[i,j]^2 + eps)      y[i,j] = w[j] x[i,j] r[i]
// Rows are those of a matrix [rows, cols], with r [rows]. For the norms of q and k they are heads
// of a tensor [batch, seq, all heads, head_dim] (heads.h), with cols = head_dim and r [batch, seq,
// heads of x]. x, y, dx, dy: fp32, bf16 or fp16, all of one dtype; w: [cols], of that dtype or
// fp32; dw: [cols], of any of the three; r: fp32. Computed in fp32, each result rounded once. Any
// number of rows. Backward needs x, w and r. No result depends on the number of threads.
#ifndef FSDP_TRAIN_TRAINER_OPS_RMS_NORM_H_
#define FSDP_TRAIN_TRAINER_OPS_RMS_NORM_H_

#include <optional>

#include "trainer/ops/heads.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// 4 FLOPs per element. Reads x once from memory, and a second time from cache. y may be x. Other
// heads of y's tensor are left alone.
void RmsNormForward(Stream& stream, ConstView x, ConstView w, float eps, View y, View r);
void RmsNormForward(Stream& stream, const ConstHeads& x, ConstView w, float eps, const Heads& y,
                    View r);

enum class RmsNormDx {
  kOverwrite,  // dx = the gradient.
  kAdd,        // |dx += the gradient. dx holds that of the skip connection around a pre-norm block.
};

// Bytes of RmsNormBackward's workspace for x of this dtype on this device (never kSim): at most 32
// cols floats, or 512 cols on a GPU.
int64_t RmsNormBackwardWorkspaceBytes(int64_t rows, int64_t cols, DType dtype, DeviceType device);

//   dx[i,k] (+)= r[i] (w[k] dy[i,k] - x[i,k] r[i]^2 mean_j (w[j] dy[i,j] x[i,j]))
//   dw[k] += sum_i dy[i,k] x[i,k] r[i]
// dx may be dy itself. Adds to dw, so that micro-batches accumulate: sums over fixed sets of rows,
// in fp32, are added in a fixed order, and to the old values when they are complete. dw may be left
// out for a frozen parameter. 10 FLOPs per element.
void RmsNormBackward(Stream& stream, ConstView x, ConstView w, ConstView r, ConstView dy,
                     RmsNormDx mode, View dx, std::optional<View> dw, View workspace);
// Overwrites dx.
void RmsNormBackward(Stream& stream, const ConstHeads& x, ConstView w, ConstView r,
                     const ConstHeads& dy, const Heads& dx, std::optional<View> dw, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_RMS_NORM_H_
