// LayerNorm (Ba, Kiros and Hinton 2016, arXiv:1607.06450) and RMSNorm (Zhang and Sennrich 2019,
// arXiv:1910.07467), which has neither mean nor bias. Both normalise rows of the last dimension:
//   LayerNorm: mean[i] = mean_j x[i,j]      RMSNorm: mean[i] = 0, b[j] = 0
//   r[i] = 1 / sqrt(mean_j (x[i,j] - mean[i])^2 + eps)
//   xhat[i,j] = (x[i,j] - mean[i]) r[i]      y[i,j] = w[j] xhat[i,j] + b[j]
// Rows are those of a matrix [rows, cols], with mean and r [rows]. For RMSNorms of q and k they are
// heads of a tensor [batch, seq, all heads, head_dim] (heads.h), with cols = head_dim and r [batch,
// seq, heads of x]; or, where w has as many elements as x's heads together, these are one row, and
// r is [batch, seq, 1]. x, y, dx, dy: fp32, bf16 or fp16, all of one dtype; w, b: [cols], of that
// dtype or fp32; dw, db: [cols], each of any of the three; mean, r: fp32. Computed in fp32, each
// result rounded once. Any number of rows. Backward needs x, w, mean and r. No result depends on
// the number of threads.
#ifndef FSDP_TRAIN_TRAINER_OPS_NORM_H_
#define FSDP_TRAIN_TRAINER_OPS_NORM_H_

#include <limits>
#include <optional>

#include "trainer/ops/heads.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The least eps of a LayerNorm: the kernel flushes subnormal numbers, so a smaller one would be 0.
inline constexpr double kMinLayerNormEps = std::numeric_limits<float>::min();

// LayerNorm has 8 FLOPs per element, RMSNorm 4. Reads x once from memory, and again from cache. y
// may be x. Other heads of y's tensor are left alone.
void LayerNormForward(Stream& stream, ConstView x, ConstView w, ConstView b, float eps, View y,
                      View mean, View r);
void RmsNormForward(Stream& stream, ConstView x, ConstView w, float eps, View y, View r);
void RmsNormForward(Stream& stream, const ConstHeads& x, ConstView w, float eps, const Heads& y,
                    View r);

enum class NormDx {
  kOverwrite,  // dx = the gradient.
  kAdd,        // |dx += the gradient. dx holds that of the skip connection around a pre-norm block.
};

// Bytes of a backward pass's workspace for x of this dtype on this device (never kSim): at most 32
// cols floats, or 512 cols on a GPU; LayerNorm's has twice as many.
int64_t LayerNormBackwardWorkspaceBytes(int64_t rows, int64_t cols, DType dtype, DeviceType device);
int64_t RmsNormBackwardWorkspaceBytes(int64_t rows, int64_t cols, DType dtype, DeviceType device);

//   g[i,j] = w[j] dy[i,j]
//   dx[i,k] (+)= r[i] (g[i,k] - mean_j g[i,j] - xhat[i,k] mean_j (g[i,j] xhat[i,j]))
//   dw[k] += sum_i dy[i,k] xhat[i,k]      db[k] += sum_i dy[i,k]
// RMSNorm's dx has no mean_j g[i,j]. dx may be dy itself. Adds to dw and db, so that micro-batches
// accumulate: sums over fixed sets of rows, in fp32, are added in a fixed order, and to the old
// values when they are complete. Either may be left out for a frozen parameter. LayerNorm has 16
// FLOPs per element, RMSNorm 10.
void LayerNormBackward(Stream& stream, ConstView x, ConstView w, ConstView mean, ConstView r,
                       ConstView dy, NormDx mode, View dx, std::optional<View> dw,
                       std::optional<View> db, View workspace);
void RmsNormBackward(Stream& stream, ConstView x, ConstView w, ConstView r, ConstView dy,
                     NormDx mode, View dx, std::optional<View> dw, View workspace);
// Overwrites dx.
void RmsNormBackward(Stream& stream, const ConstHeads& x, ConstView w, ConstView r,
                     const ConstHeads& dy, const Heads& dx, std::optional<View> dw, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_NORM_H_
