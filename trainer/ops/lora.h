// A low-rank adapter beside a linear layer (Hu et al. 2021, arXiv:2106.09685), for the columns
// [column, column + out) of the layer's output:
//   u = x A^T      y[:, column + j] += scale (u B^T)[:, j]
//
// x, dx: [rows, in]; a, da: [rank, in] and b, db: [out, rank], both as torch.nn.Linear has them; u:
// [rows, rank], which backward needs; y, dy: [rows, cols], cols >= column + out. x, u, y and their
// gradients are fp32, bf16 or fp16, all of one dtype; a and b have that dtype or fp32; da and db
// each have any of the three. Sums are fp32, and rounded once; the old value is among their terms.
// Throws std::invalid_argument before anything is enqueued: dtypes, shapes, overlapping results.
#ifndef FSDP_TRAIN_TRAINER_OPS_LORA_H_
#define FSDP_TRAIN_TRAINER_OPS_LORA_H_

#include <cstdint>
#include <optional>

#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Overwrites u, adds to y. 2 rows rank (in + out) FLOPs.
void LoraForward(Stream& stream, ConstView x, ConstView a, ConstView b, float scale, int64_t column,
                 View u, View y);

//   v = scale dy[:, column ... column + out] B      [rows, rank], in u's dtype, in the workspace
//   dx += v A      da += v^T x      db += scale dy[:, column ... column + out]^T u
// da and db may each be left out where frozen. 4 rows rank (in + out) FLOPs.
void LoraBackward(Stream& stream, ConstView x, ConstView u, ConstView a, ConstView b, float scale,
                  ConstView dy, int64_t column, View dx, std::optional<View> da,
                  std::optional<View> db, View workspace);

// Bytes of LoraBackward's workspace on this device (never kSim), for operands of this dtype.
int64_t LoraBackwardWorkspaceBytes(int64_t rows, int64_t rank, DType dtype, DeviceType device);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LORA_H_
