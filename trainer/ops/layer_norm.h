// LayerNorm over the last dimension (Ba, Kiros and Hinton 2016, arXiv:1607.06450):
//   mean[i] = mean_j x[i,j]      rstd[i] = 1 / sqrt(mean_j (x[i,j] - mean[i])^2 + eps)
//   xhat[i,j] = (x[i,j] - mean[i]) rstd[i]      y[i,j] = w[j] xhat[i,j] + b[j]
// x, y, dx, dy: [rows, cols], fp32, bf16 or fp16, all of one dtype; w, b: [cols], of that dtype or
// fp32; dw, db: [cols], each of any of the three; mean, rstd: [rows], fp32; rows may be 0. Computed
// in fp32, each result rounded once. Backward needs x, w, mean and rstd. No result depends on the
// number of threads.
#ifndef FSDP_TRAIN_TRAINER_OPS_LAYER_NORM_H_
#define FSDP_TRAIN_TRAINER_OPS_LAYER_NORM_H_

#include <limits>
#include <optional>

#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The least eps: the kernel flushes subnormal numbers, so a smaller one would be 0.
inline constexpr double kMinLayerNormEps = std::numeric_limits<float>::min();

// 8 FLOPs per element. Reads x once from memory, and a second time from cache. y may be x.
void LayerNormForward(Stream& stream, ConstView x, ConstView w, ConstView b, float eps, View y,
                      View mean, View rstd);

enum class LayerNormDx {
  kOverwrite,  // |dx = the gradient.
  kAdd,        // |dx += the gradient. dx holds that of the skip connection around a pre-norm block.
};

// Bytes of LayerNormBackward's workspace for x of this dtype on this device (never kSim): at most
// 64 cols floats, or 1024 cols on a GPU.
int64_t LayerNormBackwardWorkspaceBytes(int64_t rows, int64_t cols, DType dtype, DeviceType device);

//   g[i,j] = w[j] dy[i,j]
//   dx[i,k] (+)= rstd[i] (g[i,k] - mean_j g[i,j] - xhat[i,k] mean_j (g[i,j] xhat[i,j]))
//   dw[k] += sum_i dy[i,k] xhat[i,k]      db[k] += sum_i dy[i,k]
// dx may be dy itself. Adds to dw and db, so that micro-batches accumulate: sums over fixed sets of
// rows, in fp32, are added in a fixed order, and to the old values when they are complete. Either
// may be left out for a frozen parameter. 16 FLOPs per element.
void LayerNormBackward(Stream& stream, ConstView x, ConstView w, ConstView mean, ConstView rstd,
                       ConstView dy, LayerNormDx mode, View dx, std::optional<View> dw,
                       std::optional<View> db, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LAYER_NORM_H_
