// Tensors that hold a matrix of each expert of a layer, as transformers 5 keeps them:
//   X.experts.gate_up_proj [N, 2 i, h]: each expert's rows of gate, then its rows of up
//   X.experts.down_proj [N, h, i]
// One part of a tensor is one matrix as files have it that are written expert by expert:
// X.experts.3.gate_proj.weight [i, h], X.experts.3.up_proj.weight, X.experts.3.down_proj.weight.
// Tests: tests/trainer/weights/hf_experts_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_FUSED_EXPERTS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_FUSED_EXPERTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

struct FusedPart {
  std::string name;
  int64_t begin = 0;  // The first of its elements in the tensor.
  std::vector<int64_t> shape;
};

bool IsFused(const std::string& tensor);  // By its name.
// The parts of a tensor, expert by expert. Empty where its shape is none of those above.
std::vector<FusedPart> FusedParts(const std::string& tensor, const std::vector<int64_t>& shape);

// The tensors that would hold these parts together, and their shapes. Names of other tensors are
// ignored.
std::map<std::string, std::vector<int64_t>> FuseShapes(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& parts);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_FUSED_EXPERTS_H_
