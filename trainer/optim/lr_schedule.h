// Learning rates by step. Steps count from 1, as in metrics.jsonl.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_
#define FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_

#include <cstdint>

namespace fsdp {

enum class LrShape { kCosine, kLinear, kWsd, kConstant };
enum class LrDecay { kSqrt, kLinear, kCosine };

// After a linear rise, lr * step / warmup_steps, the rate falls from lr to low = lr * min_lr_ratio,
// which it has at the last step:
//   kCosine    over all steps after the warm-up: low + (lr - low) (1 + cos(pi p)) / 2, p being the
//              share of them that is over (Loshchilov and Hutter 2017, arXiv:1608.03983, one
//              period)
//   kLinear    likewise: low + (lr - low) (1 - p)
//   kWsd       warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395): lr, but over the last
//              decay_steps low + (lr - low) f(p), p being the share of those that is over; f(p) is
//              1 - sqrt(p) (Haegele et al. 2024, arXiv:2405.18392), 1 - p or (1 + cos(pi p)) / 2
//   kConstant  it does not fall
struct LrSchedule {
  LrShape shape = LrShape::kCosine;
  double lr = 3e-4;                // The peak.
  int64_t warmup_steps = 0;        // At most steps.
  int64_t steps = 100;             // Of the run.
  double min_lr_ratio = 0.1;       // Of the last step's rate to the peak.
  int64_t decay_steps = 0;         // kWsd; with warmup_steps at most steps.
  LrDecay decay = LrDecay::kSqrt;  // kWsd.

  // step >= 1; what is past `steps` has the rate of the last.
  double At(int64_t step) const;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_
