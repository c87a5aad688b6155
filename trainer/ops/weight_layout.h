// Tests: tests/trainer/ops/linear_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_WEIGHT_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_OPS_WEIGHT_LAYOUT_H_

namespace fsdp {

// How a weight matrix lies in memory: as its Hugging Face file has it, so that it is never turned.
enum class WeightLayout {
  kInOut,  // [in, out]: GPT-2's Conv1D.
  kOutIn,  // [out, in]: torch.nn.Linear.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_WEIGHT_LAYOUT_H_
