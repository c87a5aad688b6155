#include "trainer/optim/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace fsdp {

double LrSchedule::At(int64_t step) const {
  if (step <= warmup_steps) {
    return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (shape == LrShape::kConstant) return lr;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(steps - warmup_steps);
  const double low = lr * min_lr_ratio;
  return low + (lr - low) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

}  // namespace fsdp
