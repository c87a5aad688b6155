// Learning rates by step. Steps count from 1, as in metrics.jsonl.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_
#define FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_

#include <cstdint>

namespace fsdp {

enum class LrShape { kCosine, kLinear, kWsd, kConstant };
enum class LrDecay { kSqrt, kLinear, kCosine };

// After a linear rise, lr * step / warmup_steps, the rate falls from lr to low = lr * min_lr_ratio,
// its value at the last step. p is the share of the falling steps that is over:
//   kCosine    over all steps after the warm-up: low + (lr - low) (1 + cos(pi p)) / 2 (Loshchilov
//              and Hutter 2017, arXiv:1608.03983, one period)
//   kLinear    over all steps after the warm-up: low + (lr - low) (1 - p)
//   kWsd       warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395): lr, and over the last
//              decay_steps low + (lr - low) f(p), where f(p) is 1 - sqrt(p) (Haegele et al. 2024,
//              arXiv:2405.18392), 1 - p or (1 + cos(pi p)) / 2
//   kConstant  does not fall
struct LrSchedule {
  LrShape shape = LrShape::kCosine;
  double lr = 3e-4;                // The peak.
  int64_t warmup_steps = 0;        // At most steps.
  int64_t steps = 100;             // The run's length.
  double min_lr_ratio = 0.1;       // The last step's rate, divided by the peak.
  int64_t decay_steps = 0;         // kWsd; with warmup_steps at most steps.
  LrDecay decay = LrDecay::kSqrt;  // kWsd.

  // step >= 1. Steps past `steps` have the rate of the last.
  double At(int64_t step) const;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_
