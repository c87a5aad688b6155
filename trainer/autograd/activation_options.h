// Options for the values that forward makes and backward needs. Recipes read them, so this header
// includes nothing.
// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OPTIONS_H_

namespace fsdp {

// Values that backward computes again instead of keeping them.
enum class Recompute {
  kNone,
  kSelective,  // Norms, activations and attention are computed again; their inputs are kept.
  kFull,       // Only the inputs of blocks are kept.
};

// Where the values that forward keeps for backward wait between the two passes.
enum class ActivationOffload {
  kNone,  // Stay where they were made.
  kHost,  // Host memory, except what the last segments keep.
  kSpill  // A disk, except what the last segments keep.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_ACTIVATION_OPTIONS_H_
