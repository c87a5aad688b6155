// Makes a loss scale mean over many ranks what it means in PyTorch's FSDP2. In FSDP2 a rank's
// gradient is that of the mean over its own rows, and ranks' gradients are averaged (FSDP2 divides
// about half of it before the sum and the rest behind, torch/distributed/fsdp/_fully_shard/
// _fsdp_collectives.py). Here a rank's gradient is that of the mean over all rows, and ranks'
// gradients are summed. Let P be the largest power of two that is at most the number of ranks. Our
// gradient times P is as large as FSDP2's, or up to twice as small; a power of two moves no other
// bit.
#ifndef FSDP_TRAIN_TRAINER_FSDP_LOSS_SCALE_H_
#define FSDP_TRAIN_TRAINER_FSDP_LOSS_SCALE_H_

#include <bit>
#include <cmath>

#include "trainer/ops/loss_scaler_options.h"

namespace fsdp {

// P of 1, 2, 3, ... ranks: 1, 2, 2, 4, 4, 4, 4, 8. Gradients in fp16 are divided by P before a sum
// over replicas, and their readers multiply by P: the sum overflows where the mean does.
inline int RanksToScaleBy(int ranks) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
}

// init_scale times P, as far as fp32 goes.
inline float FirstLossScale(const LossScalerOptions& options, int ranks) {
  int factor = RanksToScaleBy(ranks);
  while (!std::isfinite(static_cast<float>(options.init_scale * factor))) factor /= 2;
  return static_cast<float>(options.init_scale * factor);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_LOSS_SCALE_H_
