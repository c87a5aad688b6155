#include "models/moe/hf_config.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "models/llama/hf_config.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

// The key that a relative's number of experts is written with.
const char* ExpertsKey(std::string_view type) {
  return type == "mixtral" ? "num_local_experts"
         : type == "dots1" ? "n_routed_experts"
                           : "num_experts";
}

// An expert's width: Mixtral and OLMoE have no other.
const char* WidthKey(std::string_view type) {
  return type == "mixtral" || type == "olmoe" ? "intermediate_size" : "moe_intermediate_size";
}

// transformers reads and writes one of these or another, which depends on its version.
void ReadExperts(HfObject& hf, int64_t& experts) {
  const char* first = nullptr;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const auto value = hf.Integer(key);
    if (!value) continue;
    if (first != nullptr && *value != experts) {
      hf.Refuse(key, std::to_string(*value) + " is not " + first + ", " + std::to_string(experts));
    }
    experts = *value;
    first = key;
  }
}

// Calls is_dense(layer) for each layer.
void SetDense(MoeConfig& config, const std::function<bool(int64_t)>& is_dense) {
  config.dense_layers.clear();
  for (int64_t i = 0; i < std::min(config.num_hidden_layers, kMaxHiddenLayers); ++i) {
    if (is_dense(i)) config.dense_layers.push_back(i);
  }
}

void ReadQwen(HfObject& hf, MoeConfig& config) {
  std::set<int64_t> listed;
  if (const auto layers = hf.Find("mlp_only_layers")) {
    for (const JsonValue& layer : layers->Elements()) listed.insert(layer.Integer());
  }
  const int64_t step = hf.Integer("decoder_sparse_step").value_or(1);
  if (step < 1) hf.Refuse("decoder_sparse_step", std::to_string(step) + " is not from 1");
  SetDense(config,
           [&](int64_t layer) { return listed.contains(layer) || (layer + 1) % step != 0; });
}

void ReadQwen2(HfObject& hf, MoeConfig& config) {
  config.attention_bias = hf.Boolean("qkv_bias").value_or(true);
  int64_t& shared = config.shared_expert_intermediate_size;
  shared = hf.Integer("shared_expert_intermediate_size").value_or(shared);
}

// The fields that dots1 alone has: published files have null for one group.
void ReadDots(HfObject& hf, MoeConfig& config) {
  config.n_group = hf.Integer("n_group").value_or(1);
  config.topk_group = hf.Integer("topk_group").value_or(1);
  if (const auto factor = hf.Real("routed_scaling_factor")) config.routed_scaling_factor = *factor;
  const int64_t shared = hf.Integer("n_shared_experts").value_or(0);
  if (shared < 0 || shared > kMaxIntermediateSize) {
    hf.Refuse("n_shared_experts",
              std::to_string(shared) + " is not from 0 to " + std::to_string(kMaxIntermediateSize));
  }
  config.shared_expert_intermediate_size = shared * config.moe_intermediate_size;
  const int64_t first = hf.Integer("first_k_dense_replace").value_or(0);
  SetDense(config, [&](int64_t layer) { return layer < first; });
}

}  // namespace

std::vector<MoeRelative> MoeRelatives() {
  MoeConfig plain;
  plain.head_dim = 0;
  plain.rms_norm_eps = 1e-6;
  plain.max_position_embeddings = 32768;
  plain.vocab_size = 151936;

  MoeConfig mixtral = plain;
  mixtral.vocab_size = 32000;
  mixtral.intermediate_size = mixtral.moe_intermediate_size = 14336;
  mixtral.num_key_value_heads = 8;
  mixtral.max_position_embeddings = 131072;
  mixtral.rms_norm_eps = 1e-5;
  mixtral.rope_theta = 1e6;
  mixtral.norm_topk_prob = true;

  MoeConfig qwen2 = plain;
  qwen2.hidden_size = 2048;
  qwen2.intermediate_size = qwen2.shared_expert_intermediate_size = 5632;
  qwen2.num_hidden_layers = 24;
  qwen2.num_attention_heads = qwen2.num_key_value_heads = 16;
  qwen2.attention_bias = true;
  qwen2.num_experts = 60;
  qwen2.num_experts_per_tok = 4;
  qwen2.moe_intermediate_size = 1408;
  qwen2.shared_expert_gate = true;

  MoeConfig qwen3 = plain;
  qwen3.hidden_size = 2048;
  qwen3.intermediate_size = 6144;
  qwen3.num_hidden_layers = 24;
  qwen3.num_key_value_heads = 4;
  qwen3.qk_norm = true;
  qwen3.num_experts = 128;
  qwen3.num_experts_per_tok = 8;
  qwen3.moe_intermediate_size = 768;

  MoeConfig olmoe = plain;
  olmoe.vocab_size = 50304;
  olmoe.hidden_size = olmoe.intermediate_size = olmoe.moe_intermediate_size = 2048;
  olmoe.num_hidden_layers = 16;
  olmoe.num_attention_heads = 16;
  olmoe.num_key_value_heads = 0;
  olmoe.max_position_embeddings = 4096;
  olmoe.rms_norm_eps = 1e-5;
  olmoe.qk_norm_all_heads = true;
  olmoe.num_experts = 64;
  olmoe.num_experts_per_tok = 8;

  MoeConfig dots = plain;
  dots.vocab_size = 152064;
  dots.hidden_size = 4608;
  dots.intermediate_size = 10944;
  dots.moe_intermediate_size = 1408;
  dots.num_hidden_layers = 62;
  dots.max_position_embeddings = 2048;
  dots.qk_norm = true;
  dots.num_experts = dots.num_experts_per_tok = 0;
  dots.scoring_func = RouterScores::kSigmoid;
  dots.score_correction_bias = true;

  return {{"mixtral", "MixtralForCausalLM", mixtral},
          {"qwen2_moe", "Qwen2MoeForCausalLM", qwen2},
          {"qwen3_moe", "Qwen3MoeForCausalLM", qwen3},
          {"olmoe", "OlmoeForCausalLM", olmoe},
          {"dots1", "Dots1ForCausalLM", dots}};
}

void ReadMoeConfig(const MoeRelative& relative, HfObject& hf, MoeConfig& config) {
  const std::string_view type = relative.model_type;
  ReadLlamaConfig(type, hf, config);
  ReadExperts(hf, config.num_experts);
  config.moe_intermediate_size = hf.Integer(WidthKey(type)).value_or(config.moe_intermediate_size);
  if (type != "mixtral") config.norm_topk_prob = hf.Boolean("norm_topk_prob").value_or(false);
  if (type.starts_with("qwen")) ReadQwen(hf, config);
  if (type == "qwen2_moe") ReadQwen2(hf, config);
  if (type == "dots1") ReadDots(hf, config);
  const std::optional<double> balance = hf.Real("router_aux_loss_coef");
  const double standard = type == "olmoe" ? 0.01 : type == "dots1" ? 0 : 0.001;
  const bool asks = hf.Boolean("output_router_logits").value_or(false);
  config.hf_balance.aux_loss = asks ? balance.value_or(standard) : 0;
}

namespace {

// Why no file of the relative says `c`; "": one does.
std::string WhyNot(std::string_view type, const MoeConfig& c) {
  const bool all_biases = c.attention_bias == c.attention_output_bias;
  const auto prefix = static_cast<int64_t>(c.dense_layers.size());
  const bool first_are_dense = prefix == 0 || c.dense_layers.back() == prefix - 1;
  const bool groups = c.n_group != 1 || c.topk_group != 1;
  if (type == "dots1") {
    if (!c.score_correction_bias) return "sigmoid scores without score_correction_bias";
    if (!c.qk_norm) return "sigmoid scores without qk_norm";
    if (!all_biases) return "sigmoid scores with attention_bias and no attention_output_bias";
    if (!first_are_dense) return "sigmoid scores, and other dense_layers than the first ones";
    if (c.shared_expert_gate) return "sigmoid scores with shared_expert_gate";
    if (c.shared_expert_intermediate_size == 0 ||
        c.shared_expert_intermediate_size % c.moe_intermediate_size != 0) {
      return "sigmoid scores, and a shared expert that is not some experts wide";
    }
    return "";
  }
  if (groups) return "softmax scores with n_group";
  if (c.routed_scaling_factor != 1) return "softmax scores with routed_scaling_factor";
  const bool shared = c.shared_expert_intermediate_size > 0;
  if (type == "qwen2_moe") {
    if (c.attention_output_bias) return "attention_output_bias without norms of q and k";
    if (!shared) return "attention_bias without norms of q and k or a shared expert";
    return c.shared_expert_gate ? "" : "a shared expert without shared_expert_gate";
  }
  if (type != "mixtral" && !all_biases) {
    return "norms of q and k with attention_bias and no attention_output_bias";
  }
  if (shared) return "norms of q and k with softmax scores and a shared expert";
  if (type == "qwen3_moe") return "";
  if (!c.dense_layers.empty()) return "dense_layers without qk_norm or shared_expert_gate";
  if (type == "mixtral" && !c.norm_topk_prob) {
    return "norm_topk_prob false without norms of q and k or shared_expert_gate";
  }
  return "";
}

}  // namespace

const MoeRelative& MoeRelativeOf(const std::vector<MoeRelative>& relatives,
                                 const MoeConfig& config) {
  const bool is_qwen2 = config.shared_expert_intermediate_size > 0 || config.attention_bias ||
                        config.attention_output_bias;
  const std::string_view type = config.scoring_func == RouterScores::kSigmoid ? "dots1"
                                : config.qk_norm_all_heads                    ? "olmoe"
                                : config.qk_norm                              ? "qwen3_moe"
                                : is_qwen2                                    ? "qwen2_moe"
                                                                              : "mixtral";
  if (const std::string why = WhyNot(type, config); !why.empty()) {
    throw CheckpointError("no model of transformers has " + why + ": this one cannot be exported");
  }
  return *std::find_if(relatives.begin(), relatives.end(),
                       [&](const MoeRelative& r) { return r.model_type == type; });
}

void WriteMoeConfig(const MoeRelative& relative, const MoeConfig& config, JsonTree& json) {
  const std::string_view type = relative.model_type;
  WriteLlamaConfig(type, config, json);
  json[ExpertsKey(type)] = config.num_experts;
  json[WidthKey(type)] = config.moe_intermediate_size;
  if (type != "mixtral") json["norm_topk_prob"] = config.norm_topk_prob;
  if (type == "mixtral" || type == "dots1") json["sliding_window"] = nullptr;
  if (type == "qwen3_moe") json["num_local_experts"] = config.num_experts;  // As transformers 5.
  if (type.starts_with("qwen")) {
    json["mlp_only_layers"] = config.dense_layers;
    json["decoder_sparse_step"] = 1;
    json["use_sliding_window"] = false;
  }
  if (type == "qwen2_moe") {
    json["qkv_bias"] = config.attention_bias;
    json["shared_expert_intermediate_size"] = config.shared_expert_intermediate_size;
  }
  if (type == "dots1") {
    json["first_k_dense_replace"] = config.dense_layers.size();
    json["n_shared_experts"] =
        config.shared_expert_intermediate_size / config.moe_intermediate_size;
    json["n_group"] = config.n_group;
    json["topk_group"] = config.topk_group;
    json["routed_scaling_factor"] = config.routed_scaling_factor;
  }
  if (config.hf_balance.aux_loss > 0) {
    json["output_router_logits"] = true;
    json["router_aux_loss_coef"] = config.hf_balance.aux_loss;
  }
}

}  // namespace fsdp
