// Turns an image into a sequence (Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1): patches,
// which a linear layer turns into tokens; a learned token before them; a table of positions added
// to all. A head then reads the first token alone.
//
// Matrices are of one dtype, fp32, bf16 or fp16; sums are fp32 and rounded once. The rows of a
// sample follow each other: `samples`, at least 1, divides them. Nothing is saved; no workspace.
// Throws std::invalid_argument before anything is enqueued.
#ifndef FSDP_TRAIN_TRAINER_OPS_IMAGE_TOKENS_H_
#define FSDP_TRAIN_TRAINER_OPS_IMAGE_TOKENS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/patch_order.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The squares of patch x patch pixels of each image, row by row.
// pixels: fp32 [samples, height, width, channels], whose sides `patch` divides. patches:
// [samples * height / patch * width / patch, patch * patch * channels], overwritten, of any of the
// three dtypes.
void CutPatches(Stream& stream, ConstView pixels, int64_t patch, PatchOrder order, View patches);

//   y[s, 0] = first + positions[0]     y[s, 1 + i] = x[s, i] + positions[1 + i]
// x: [samples * n, cols]; first: [cols] and positions: [1 + n, cols], of x's dtype or fp32;
// y: [samples * (1 + n), cols], overwritten, overlaps nothing else.
void JoinTokensForward(Stream& stream, ConstView x, ConstView first, ConstView positions,
                       int64_t samples, View y);
//   dx[s, i] = dy[s, 1 + i]     dfirst += sum_s dy[s, 0]     dpositions[i] += sum_s dy[s, i]
// Overwrites dx. Each element of dfirst and dpositions, of any of the three dtypes, is summed from
// its old value on, in the order of the samples. Either may be left out. No two overlap.
void JoinTokensBackward(Stream& stream, ConstView dy, int64_t samples, View dx,
                        std::optional<View> dfirst, std::optional<View> dpositions);

//   y[s] = x[s, 0]     dx[s, 0] = dy[s], dx[s, i] = 0 elsewhere
// x, dx: [samples * n, cols]; y, dy: [samples, cols]. Overwrites y, dx.
void FirstTokensForward(Stream& stream, ConstView x, View y);
void FirstTokensBackward(Stream& stream, ConstView dy, View dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_IMAGE_TOKENS_H_
