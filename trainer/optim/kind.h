// Tests: tests/trainer/optim/optimizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPTIM_KIND_H_
#define FSDP_TRAIN_TRAINER_OPTIM_KIND_H_

namespace fsdp {

enum class OptimizerKind { kAdamW, kSgd };

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_KIND_H_
