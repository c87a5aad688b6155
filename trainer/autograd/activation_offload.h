// Tests: tests/trainer/engine/bitwise_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OFFLOAD_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OFFLOAD_H_

namespace fsdp {

// Where what forward keeps for backward is meanwhile.
enum class ActivationOffload {
  kNone,  // Where it was made.
  kHost,  // In host memory, but for what the last segments keep.
  kSpill  // Likewise, on a disk.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OFFLOAD_H_
