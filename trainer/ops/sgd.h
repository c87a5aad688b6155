// Stochastic gradient descent with momentum, in the order of torch.optim.SGD (dampening 0, no
// Nesterov). Weight decay is coupled: it is part of the gradient. With c = coefficient[0]:
//   d  = c g + wd p                         wd and s: weight_decay and lr_scale of its rule
//   b  = momentum b + d;  p -= s lr b       momentum > 0: a buffer that starts at 0 is torch's
//   p -= s lr d                             momentum = 0
// update.h describes g, p, the state b, skipping, padding and threads. b is View() when momentum is
// 0. coefficient: [1], fp32, read on the device.
#ifndef FSDP_TRAIN_TRAINER_OPS_SGD_H_
#define FSDP_TRAIN_TRAINER_OPS_SGD_H_

#include "trainer/ops/update.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

struct SgdOptions {
  double momentum = 0;  // In [0, 1).
};

// rules: a table of WriteRules(). factors: from DeriveUpdateFactors(); only lr counts. With all
// operands in fp32 and without extras: 7 FLOPs and 20 bytes per element, or 5 and 12 without
// momentum.
void Sgd(Stream& stream, const SgdOptions& options, ConstView rules, ConstView factors,
         ConstView coefficient, ConstView g, View p, View b, const UpdateExtras& extras = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_SGD_H_
