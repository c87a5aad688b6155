// An exponential moving average of parameters (Polyak and Juditsky 1992; as torch.optim.swa_utils'
// get_ema_multi_avg_fn computes it). For each element:
//   e += (1 - decay) (p - e)
// e, p: [n], fp32, a flat shard; coefficient: [1], fp32, read on the device: the optimizer's.
//   Skipping  A coefficient that is not finite changes nothing: the optimizer skipped the step.
//   Padding   Elements that are exactly 0 in e and p stay exactly 0.
//   Threads   Element by element: no result depends on their number.
#ifndef FSDP_TRAIN_TRAINER_OPS_EMA_H_
#define FSDP_TRAIN_TRAINER_OPS_EMA_H_

#include "trainer/runtime/stream.h"

namespace fsdp {

// decay in [0, 1); 1 - decay is computed in float64 and rounded once. 3 FLOPs and 12 bytes an
// element.
void Ema(Stream& stream, double decay, ConstView coefficient, ConstView p, View e);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_EMA_H_
