// Names of a mixture's tensors, as the relative in transformers that has such a shape calls them.
// Tests: tests/models/moe/family_test.cc
#ifndef FSDP_TRAIN_MODELS_MOE_NAMES_H_
#define FSDP_TRAIN_MODELS_MOE_NAMES_H_

#include <string>

#include "models/moe/config.h"

namespace fsdp {

// Behind the prefix of a layer, as "model.layers.0.": names without ".weight", but for the last
// two, which are whole.
struct ExpertNames {
  std::string moe = "mlp.";  // Comes before all that follow. Dense layers have "mlp." always.
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // Behind Expert().
  std::string shared = "shared_expert.";  // Its three matrices have the names of a dense MLP's.
  std::string shared_gate = "shared_expert_gate.weight";
  std::string router = "gate.weight", bias = "gate.e_score_correction_bias";

  // "mlp.experts.3.", before gate, up and down.
  std::string Expert(int64_t expert) const {
    return moe + "experts." + std::to_string(expert) + ".";
  }
};

// A shape that no relative has gets Qwen's names.
ExpertNames NamesOf(const MoeConfig& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_MOE_NAMES_H_
