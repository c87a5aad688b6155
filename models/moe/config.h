// The shape of a decoder whose MLPs are mixtures of experts: Mixtral (Jiang et al. 2024,
// arXiv:2401.04088), Qwen2-MoE (arXiv:2407.10671), Qwen3-MoE (arXiv:2505.09388), OLMoE
// (Muennighoff et al. 2024, arXiv:2409.02060) and dots.llm1 (arXiv:2506.05767: the routing of
// DeepSeek-V3, arXiv:2412.19437). Attention, norms and head are Llama's.
// Tests: tests/models/moe/family_test.cc
#ifndef FSDP_TRAIN_MODELS_MOE_CONFIG_H_
#define FSDP_TRAIN_MODELS_MOE_CONFIG_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/llama/config.h"
#include "trainer/ops/router_options.h"

namespace fsdp {

// config.json's router_aux_loss_coef where its output_router_logits is true; 0: it asks for no
// balance loss. No part of the shape: all are equal.
struct HfBalance {
  double aux_loss = 0;

  bool operator==(const HfBalance&) const { return true; }
};

// Names as in recipes. A field that is not LlamaConfig's follows another one, or its default is
// that of a model without the feature.
struct MoeConfig : LlamaConfig {
  // intermediate_size: width of the MLPs of dense_layers. mlp_bias and sliding_window: false and 0.
  int64_t num_experts = 8;
  int64_t num_experts_per_tok = 2;  // Experts that a token is sent to.
  int64_t moe_intermediate_size = intermediate_size;
  int64_t shared_expert_intermediate_size = 0;  // The MLP that every token passes; 0: none.
  bool shared_expert_gate = false;  // The shared MLP is multiplied by the sigmoid of a row.
  bool norm_topk_prob = false;      // A token's weights are divided by their sum.
  RouterScores scoring_func = RouterScores::kSoftmax;
  int64_t n_group = 1, topk_group = 1;  // Experts come from topk_group of n_group groups.
  double routed_scaling_factor = 1;     // A factor of a token's weights.
  bool score_correction_bias = false;   // A buffer [num_experts], added to scores for the choice.
  std::vector<int64_t> dense_layers = {};  // Ascending: these have an MLP and no experts.
  bool qk_norm_all_heads = false;  // One RMSNorm over all heads of q, and one over all of k.

  HfBalance hf_balance = {};
  // No part of the shape: segments of their own that a layer's experts have; 0: those of their
  // block.
  int64_t expert_pieces = 0;

  bool operator==(const MoeConfig&) const = default;
  bool IsDense(int64_t layer) const {
    return std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end();
  }
};

const ModelFamily& FamilyOfConfig(const MoeConfig& config);
std::shared_ptr<Model> MakeMoe(const MoeConfig& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_MOE_CONFIG_H_
