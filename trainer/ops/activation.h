// Tests: tests/trainer/ops/activations_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ACTIVATION_H_
#define FSDP_TRAIN_TRAINER_OPS_ACTIVATION_H_

namespace fsdp {

// Functions of one element, with formulas in activations.h. Tables have one entry for each, in this
// order.
enum class Activation { kGelu, kRelu, kSigmoid, kGeluExact };
inline constexpr int kActivations = 4;

// FLOPs per element. Products that compute GELU in their epilogue count them, too.
inline constexpr double kGeluForwardFlops = 25, kGeluBackwardFlops = 35;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ACTIVATION_H_
