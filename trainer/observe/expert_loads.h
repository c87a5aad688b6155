// The loads of a model's experts in one step, over all ranks.
// Tests: tests/trainer/observe/expert_loads_test.cc
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_EXPERT_LOADS_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_EXPERT_LOADS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fsdp {

// All layers that have N experts, together.
struct ExpertLoads {
  int64_t rows = 0;     // Choices of a layer: k times the step's tokens, padding excepted.
  double max_load = 0;  // The busiest expert's tokens over their mean, of the worst layer.
  int64_t unused = 0;   // Experts without a token, in all layers together.
  double entropy = 0;   // Mean over layers of that of the loads' shares, over ln N: 1 is even.
  double aux_loss = 0, z_loss = 0;  // Means over layers and targets, without their coefficients.
  std::vector<std::vector<int64_t>> loads = {};  // Tokens by layer and expert.
};

// tallies: as TallyElements() (nn/experts.h) has them, one a layer. Empty without a layer.
std::optional<ExpertLoads> LoadsOf(const std::vector<std::span<const float>>& tallies);

// Kind "experts".
struct ExpertsRecord {
  int64_t step = 0;
  std::vector<std::vector<int64_t>> loads = {};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_EXPERT_LOADS_H_
