// Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2), in
// the order of torch.optim.AdamW. For each element, where c = coefficient[0] and `factors` has lr
// and t:
//   p -= s lr wd p                          wd and s: weight_decay and lr_scale of its rule
//   m += (1 - beta1) (c g - m)
//   v  = beta2 v + (1 - beta2) (c g)^2
//   p -= s lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// update.h describes g, p, the states m and v, skipping, padding and threads. coefficient: [1],
// fp32, read on the device: the product of clipping and of the correction of the mean
// (ClipCoefficient, reductions.h).
#ifndef FSDP_TRAIN_TRAINER_OPS_ADAMW_H_
#define FSDP_TRAIN_TRAINER_OPS_ADAMW_H_

#include <limits>

#include "trainer/ops/update.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The kernel flushes subnormal numbers, so a smaller eps would be 0.
inline constexpr double kMinAdamWEps = std::numeric_limits<float>::min();

struct AdamWOptions {
  double beta1 = 0.9;  // In [0, 1), as beta2.
  double beta2 = 0.999;
  double eps = 1e-8;  // At least kMinAdamWEps: it keeps padding at 0 / eps.
};

// rules: a table of WriteRules(). factors: the result of DeriveUpdateFactors() with the same betas.
// The factors of an element are computed in float64 and rounded once. 16 FLOPs per element; with
// all operands in fp32 and without extras, 28 bytes per element.
void AdamW(Stream& stream, const AdamWOptions& options, ConstView rules, ConstView factors,
           ConstView coefficient, ConstView g, View p, View m, View v,
           const UpdateExtras& extras = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ADAMW_H_
