// Tests: tests/trainer/ops/linear_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_WEIGHT_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_OPS_WEIGHT_LAYOUT_H_

namespace fsdp {

// The layout of a weight matrix in memory: that of its Hugging Face file, so it is never
// transposed.
enum class WeightLayout {
  kInOut,  // [in, out]: GPT-2's Conv1D.
  kOutIn,  // [out, in]: torch.nn.Linear.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_WEIGHT_LAYOUT_H_
