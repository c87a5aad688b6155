// Tests: tests/trainer/engine/bitwise_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OFFLOAD_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OFFLOAD_H_

namespace fsdp {

// Where the values that forward keeps for backward wait between the two passes.
enum class ActivationOffload {
  kNone,  // Stay where they were made.
  kHost,  // Host memory, except what the last segments keep.
  kSpill  // A disk, except what the last segments keep.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OFFLOAD_H_
