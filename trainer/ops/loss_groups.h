// Tests: tests/trainer/ops/binary_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LOSS_GROUPS_H_
#define FSDP_TRAIN_TRAINER_OPS_LOSS_GROUPS_H_

#include <cstdint>

namespace fsdp {

// The number of rows whose terms of a loss are summed first. On CUDA they are those of a block.
inline constexpr int kLossGroup = 256;
inline int64_t LossGroups(int64_t rows) { return (rows + kLossGroup - 1) / kLossGroup; }

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOSS_GROUPS_H_
