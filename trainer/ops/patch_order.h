// Tests: tests/trainer/ops/image_tokens_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_PATCH_ORDER_H_
#define FSDP_TRAIN_TRAINER_OPS_PATCH_ORDER_H_

namespace fsdp {

// The order of a patch's elements: by channel, row and column, as in the kernel of a convolution,
// or by row, column and channel, as they lie in the image.
enum class PatchOrder { kChannelFirst, kChannelLast };

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_PATCH_ORDER_H_
