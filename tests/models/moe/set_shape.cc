#include "tests/models/moe/set_shape.h"

#include <algorithm>
#include <string>

#include "models/shape.h"
#include "tests/models/llama/set_shape.h"
#include "tests/testing/json.h"
#include "trainer/core/philox.h"
#include "trainer/nn/parameter.h"

namespace fsdp::testing {
namespace {

void SetDots(const testing::Json& c, MoeConfig& config) {
  config.scoring_func = RouterScores::kSigmoid;
  config.score_correction_bias = true;
  config.n_group = c.at("n_group");
  config.topk_group = c.at("topk_group");
  config.routed_scaling_factor = c.at("routed_scaling_factor");
  config.shared_expert_intermediate_size =
      c.at("n_shared_experts").get<int64_t>() * config.moe_intermediate_size;
  for (int64_t i = 0; i < c.at("first_k_dense_replace"); ++i) config.dense_layers.push_back(i);
}

void SetQwen(const testing::Json& c, MoeConfig& config) {
  const auto listed = c.at("mlp_only_layers").get<std::vector<int64_t>>();
  const int64_t step = c.at("decoder_sparse_step");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const bool in_list = std::find(listed.begin(), listed.end(), i) != listed.end();
    if (in_list || (i + 1) % step != 0) config.dense_layers.push_back(i);
  }
}

}  // namespace

MoeConfig MoeConfigOf(const testing::Json& c) {
  testing::Json whole = c;  // Some say no width of heads.
  const int64_t heads = c.at("num_attention_heads");
  if (c.value("head_dim", testing::Json()).is_null()) {
    whole["head_dim"] = c.at("hidden_size").get<int64_t>() / heads;
  }
  TinyRun run;
  SetLlamaShape(whole, run);
  MoeConfig config;
  static_cast<LlamaConfig&>(config) = *run.llama;
  const std::string type = c.at("model_type");
  const char* const number = type == "olmoe" || type == "qwen2_moe" ? "num_experts"
                             : type == "dots1"                      ? "n_routed_experts"
                                                                    : "num_local_experts";
  config.num_experts = c.at(number);
  config.num_experts_per_tok = c.at("num_experts_per_tok");
  config.moe_intermediate_size = c.value("moe_intermediate_size", config.intermediate_size);
  config.norm_topk_prob = c.value("norm_topk_prob", true);  // Mixtral's is no setting.
  config.attention_bias = c.value("qkv_bias", false);
  config.qk_norm = type == "qwen3_moe" || type == "dots1";
  config.qk_norm_all_heads = type == "olmoe";
  config.shared_expert_intermediate_size = c.value("shared_expert_intermediate_size", 0);
  config.shared_expert_gate = type == "qwen2_moe";
  if (type == "dots1") SetDots(c, config);
  if (type.starts_with("qwen")) SetQwen(c, config);
  return config;
}

void SetMoeShape(const testing::Json& config, TinyRun& run) {
  run.model = [shape = MoeConfigOf(config)] { return MakeModel(shape); };
}

void InitialOfSlices(const Parameter& parameter, int64_t begin, std::span<float> values) {
  for (const SlicePiece& piece : SlicePieces(parameter, begin, std::ssize(values))) {
    const RandomStream random(7, piece.slice->name);
    const float mean = piece.slice->shape.rank() == 1 ? 1 : 0;  // A norm's weight.
    for (int64_t i = 0; i < piece.count; ++i) {
      values[piece.at + i] = mean + 0.1f * random.Normal(piece.begin + i);
    }
  }
}

}  // namespace fsdp::testing
