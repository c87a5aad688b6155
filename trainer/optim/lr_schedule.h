// Learning rates by step. Steps count from 1, as in metrics.jsonl.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_
#define FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_

#include <cstdint>

namespace fsdp {

enum class LrShape { kConstant, kCosine };

struct LrSchedule {
  LrShape shape = LrShape::kCosine;
  double lr = 3e-4;           // The peak.
  int64_t warmup_steps = 0;   // Linear: lr * step / warmup_steps.
  int64_t steps = 100;        // Of the run.
  double min_lr_ratio = 0.1;  // kCosine: lr * min_lr_ratio at the last step.

  // step in [1, steps]. After warm-up, kCosine (Loshchilov and Hutter 2017, arXiv:1608.03983, one
  // period): min + (lr - min) (1 + cos(pi (step - warmup) / (steps - warmup))) / 2.
  double At(int64_t step) const;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_LR_SCHEDULE_H_
