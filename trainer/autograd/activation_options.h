// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_RECOMPUTE_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_RECOMPUTE_H_

namespace fsdp {

// Values that backward computes again instead of keeping them.
enum class Recompute {
  kNone,
  kSelective,  // Norms, activations and attention are computed again; their inputs are kept.
  kFull,       // Only the inputs of blocks are kept.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_RECOMPUTE_H_
