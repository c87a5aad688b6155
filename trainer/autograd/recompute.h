// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_RECOMPUTE_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_RECOMPUTE_H_

namespace fsdp {

// What backward computes again instead of keeping it.
enum class Recompute {
  kNone,
  kSelective,  // Norms, activations and attention again; what their inputs are is kept.
  kFull,       // Only the inputs of blocks are kept.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_RECOMPUTE_H_
