#include "trainer/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp {
namespace {

// From 1 at p = 0 to 0 at p = 1.
double Remaining(LrDecay decay, double p) {
  switch (decay) {
    case LrDecay::kSqrt:
      return 1 - std::sqrt(p);
    case LrDecay::kLinear:
      return 1 - p;
    case LrDecay::kCosine:
      return (1 + std::cos(std::numbers::pi * p)) / 2;
  }
  return 0;
}

}  // namespace

double LrSchedule::At(int64_t step) const {
  if (step <= warmup_steps) {
    return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (shape == LrShape::kConstant) return lr;
  const int64_t falling = shape == LrShape::kWsd ? decay_steps : steps - warmup_steps;
  const int64_t fallen = std::min(step, steps) - (steps - falling);
  if (fallen <= 0) return lr;
  const LrDecay form = shape == LrShape::kWsd      ? decay
                       : shape == LrShape::kLinear ? LrDecay::kLinear
                                                   : LrDecay::kCosine;
  const double low = lr * min_lr_ratio;
  return low +
         (lr - low) * Remaining(form, static_cast<double>(fallen) / static_cast<double>(falling));
}

}  // namespace fsdp
