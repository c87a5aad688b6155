// The updates of an element by AdamW and by Muon's momentum (update.h), for kernels with state of
// any form.
// Tests: tests/trainer/ops/update_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_UPDATE_ADAMW_RULE_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_UPDATE_ADAMW_RULE_H_

#include <cuda_runtime.h>

#include <cmath>

#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {

struct AdamWRule {
  using Constants = AdamWConstants;
  static constexpr int kStates = 2;

  struct Factors {
    float c;
    AdamWConstants constants;
    float root_factor;  // 1 / sqrt(1 - beta2^t).
    float keep;         // 1 - s lr wd.
    float step_size;    // s lr / (1 - beta1^t).
  };
  static __device__ Factors FactorsOf(const Constants& constants, float c, const ElementRule& rule,
                                      const UpdateFactors& factors) {
    const double lr = rule.lr_scale * factors.lr;
    return {c, constants, factors.root_factor, static_cast<float>(1 - lr * rule.weight_decay),
            static_cast<float>(lr / factors.correction1)};
  }

  static __device__ void Update(const Factors& f, float g, float& p, float& m, float& v) {
    const float gradient = __fmul_rn(f.c, g);
    m = __fmaf_rn(f.constants.beta1_new, gradient - m, m);
    v = __fmaf_rn(f.constants.beta2_old, v,
                  __fmul_rn(__fmul_rn(f.constants.beta2_new, gradient), gradient));
    const float quotient = m / __fmaf_rn(sqrtf(v), f.root_factor, f.constants.eps);
    p = __fmaf_rn(f.keep, p, -__fmul_rn(f.step_size, quotient));
  }
};

struct MomentumRule {
  using Constants = MomentumConstants;
  using P = float;
  static constexpr int kStates = 1;

  struct Factors {
    float c;
    MomentumConstants constants;
  };
  static __device__ Factors FactorsOf(const Constants& constants, float c, const ElementRule&,
                                      const UpdateFactors&) {
    return {c, constants};
  }

  static __device__ void Update(const Factors& f, float g, float& u, float& m, float&) {
    const float gradient = __fmul_rn(f.c, g);
    m = __fmaf_rn(f.constants.fresh, gradient - m, m);
    u = __fmaf_rn(f.constants.ahead, gradient - m, m);
  }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_UPDATE_ADAMW_RULE_H_
