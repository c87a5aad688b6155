// The pass of an update (update.h) over elements that share a rule, for each instruction set
// (isa.h).
// Tests: tests/trainer/ops/update_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "trainer/core/dtype.h"

namespace fsdp {

// The tensors of an update: addresses of a shard's first elements, null for those left out.
struct UpdateTensors {
  const std::byte* g = nullptr;
  std::byte *p = nullptr, *states[2] = {}, *copy = nullptr, *average = nullptr;
  DType g_dtype = DType::kFloat32, p_dtype = DType::kFloat32, state_dtype = DType::kFloat32,
        copy_dtype = DType::kFloat32;
  float average_rate = 0;     // 1 - decay.
  uint32_t draw_key[2] = {};  // For the draws of p and of each state (stochastic_rounding.h).
};

// Elements [at, at + n) of the shard, which are [element, element + n) of the tensor.
struct UpdateRun {
  int64_t at, n;
  uint64_t tensor;  // A hash of its name.
  int64_t element;
};

struct AdamWFactors {
  float c;
  float beta1_new;  // 1 - beta1.
  float beta2_old, beta2_new;
  float eps;
  float root_factor;  // 1 / sqrt(1 - beta2^t).
  float keep;         // 1 - s lr wd.
  float step_size;    // s lr / (1 - beta1^t).
};

struct SgdFactors {
  float c;
  float momentum;  // For an update that keeps a state.
  float lr;        // s lr.
  float weight_decay;
};

struct MomentumFactors {
  float c;
  float fresh;  // 1 - momentum.
  float ahead;  // 1 - momentum, or 0.
};

// The moments of an update whose states are codes (state_codes.h): m, and AdamW's v.
struct CodedTensors {
  uint8_t* codes[2];
  float* absmax[2];
};

struct UpdateKernels {
  void (*adamw)(const UpdateTensors& tensors, const UpdateRun& run, const AdamWFactors& factors);
  void (*sgd)(const UpdateTensors& tensors, const UpdateRun& run, const SgdFactors& factors);
  void (*momentum)(const UpdateTensors& tensors, const UpdateRun& run,
                   const MomentumFactors& factors);
  // Updates whole blocks; `tensors` has no states.
  void (*adamw_coded)(const UpdateTensors& tensors, const CodedTensors& coded, const UpdateRun& run,
                      const AdamWFactors& factors);
  void (*momentum_coded)(const UpdateTensors& tensors, const CodedTensors& coded,
                         const UpdateRun& run, const MomentumFactors& factors);
};

extern const UpdateKernels kUpdateAvx2, kUpdateAvx512;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_UPDATE_KERNELS_H_
