// Stochastic gradient descent with momentum, in the order of torch.optim.SGD (dampening 0, no
// Nesterov; weight decay is coupled: part of the gradient). With c = coefficient[0]:
//   d  = c g + wd p                         wd and s: weight_decay and lr_scale of its rule
//   b  = momentum b + d;  p -= s lr b       momentum > 0: a buffer that starts at 0 is torch's
//   p -= s lr d                             momentum = 0
// p, g, b: [n], fp32, a flat shard; b is View() when momentum is 0; coefficient: [1], fp32, read on
// the device.
//   Skipping  A coefficient that is not finite changes nothing at all: p and b keep their bits.
//   Padding   Elements that are exactly 0 in p, g and b stay exactly 0.
//   Threads   Element by element: no result depends on their number.
#ifndef FSDP_TRAIN_TRAINER_OPS_SGD_H_
#define FSDP_TRAIN_TRAINER_OPS_SGD_H_

#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

struct SgdOptions {
  double momentum = 0;  // In [0, 1).
};

// rules: a table of WriteRules(); factors: of DeriveUpdateFactors(), of which lr alone counts.
// 7 FLOPs and 20 bytes an element; 5 and 12 without momentum.
void Sgd(Stream& stream, const SgdOptions& options, ConstView rules, ConstView factors,
         ConstView coefficient, ConstView g, View p, View b);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_SGD_H_
