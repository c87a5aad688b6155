// Mixtures of experts as a family: their fields and published sizes.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/llama/hf_config.h"
#include "models/llama/rows.h"
#include "models/moe/config.h"
#include "models/moe/hf_config.h"
#include "models/table_family.h"

namespace fsdp {
namespace {

using Config = MoeConfig;

// Widths of a layer's experts together. With the other bounds of a shape, 64 bits count all bytes.
constexpr int64_t kMaxExpertsWidth = int64_t{1} << 26;

// Llama's fields but those that no mixture has, then the experts', then Llama's dropouts.
std::vector<FieldRow<Config>> Rows() {
  std::vector<FieldRow<Config>> rows, dropouts;
  for (const FieldRow<LlamaConfig>& row : LlamaRows()) {
    if (row.field.name == "mlp_bias" || row.field.name == "sliding_window") continue;
    (row.field.is_dropout ? dropouts : rows).push_back(Lifted<Config>(row));
  }
  FieldRow<Config> chosen =
      Row("num_experts_per_tok", &Config::num_experts_per_tok, IntegerRange{1, kMaxExperts},
          "Experts that each token is sent to; to be given beside num_experts", "2",
          {"top_k", "moe_top_k", "moe_router_topk"}, "num_experts_per_tok");
  chosen.judged_by_code = true;
  const std::vector<FieldRow<Config>> own = {
      Row("num_experts", &Config::num_experts, IntegerRange{1, kMaxExperts},
          "Experts of a layer: MLPs of which each token is sent to some", "8",
          {"num_local_experts", "n_routed_experts", "num_moe_experts"}),
      chosen,
      Row("moe_intermediate_size", &Config::moe_intermediate_size,
          IntegerRange{1, kMaxIntermediateSize}, "Width inside an expert",
          "intermediate_size; the preset's, unless that or hidden_size is given beside it",
          {"moe_ffn_hidden_size", "expert_intermediate_size"}),
      Row("shared_expert_intermediate_size", &Config::shared_expert_intermediate_size,
          IntegerRange{0, kMaxIntermediateSize},
          "Width inside the shared expert, which every token is sent to. 0: there is none", "0",
          {"moe_shared_expert_intermediate_size"}),
      Row("shared_expert_gate", &Config::shared_expert_gate, BooleanRange(),
          "The shared expert's output is multiplied by the sigmoid of a number that is learnt of "
          "each token, as in Qwen2-MoE",
          "false", {"moe_shared_expert_gate"}),
      Row("norm_topk_prob", &Config::norm_topk_prob, BooleanRange(),
          "The weights of a token's experts are divided by their sum, as in Mixtral and Qwen3",
          "false"),
      NameRow("scoring_func", &Config::scoring_func, {"softmax", "sigmoid"},
              "How a router's logits become scores: over all experts, or each by itself",
              "softmax"),
      Row("n_group", &Config::n_group, IntegerRange{1, kMaxExperts},
          "Groups of experts: a token's experts come from topk_group of them, those whose two best "
          "scores have the largest sums",
          "1", {"moe_router_num_groups"}),
      Row("topk_group", &Config::topk_group, IntegerRange{1, kMaxExperts},
          "Groups that a token's experts come from", "1", {"moe_router_group_topk"}),
      Row("routed_scaling_factor", &Config::routed_scaling_factor, RealRange{.above = 0},
          "Factor of the weights of a token's experts", "1", {"moe_router_topk_scaling_factor"}),
      Row("score_correction_bias", &Config::score_correction_bias, BooleanRange(),
          "A bias of each expert is added to its score when experts are chosen, and not to their "
          "weights: DeepSeek-V3's balance without a loss. Sigmoid scores alone have it",
          "false", {"moe_router_enable_expert_bias"}),
      Row("dense_layers", &Config::dense_layers, IntegerRange{0, kMaxHiddenLayers - 1},
          "Blocks, from 0, with an MLP of intermediate_size in place of experts; ascending", "[]",
          {"mlp_only_layers", "first_k_dense_replace"}),
      Row("qk_norm_all_heads", &Config::qk_norm_all_heads, BooleanRange(),
          "One RMSNorm over all heads of q, and one over all of k, as in OLMoE", "false"),
  };
  rows.insert(rows.end(), own.begin(), own.end());
  rows.insert(rows.end(), dropouts.begin(), dropouts.end());
  return rows;
}

// The published sizes, kind by kind, as config.json has them.
std::vector<std::pair<std::string_view, Config>> Presets() {
  std::vector<std::pair<std::string_view, Config>> all;
  struct Size {
    int64_t hidden, inner, layers, heads, groups, head_dim;
  };
  struct Experts {
    int64_t number, chosen, inner;
  };
  const auto add = [&](std::string_view name, Config c, const Size& s, const Experts& e) {
    c.hidden_size = s.hidden;
    c.intermediate_size = s.inner;
    c.num_hidden_layers = s.layers;
    c.num_attention_heads = s.heads;
    c.num_key_value_heads = s.groups;
    c.head_dim = s.head_dim;
    c.num_experts = e.number;
    c.num_experts_per_tok = e.chosen;
    c.moe_intermediate_size = e.inner;
    all.push_back({name, c});
  };

  Config mixtral;
  mixtral.max_position_embeddings = 32768;
  mixtral.rope_theta = 1e6;
  mixtral.norm_topk_prob = true;
  add("mixtral-8x7b", mixtral, {4096, 14336, 32, 32, 8, 128}, {8, 2, 14336});
  mixtral.max_position_embeddings = 65536;
  add("mixtral-8x22b", mixtral, {6144, 16384, 56, 48, 8, 128}, {8, 2, 16384});

  Config qwen2;
  qwen2.vocab_size = 151936;
  qwen2.max_position_embeddings = 8192;
  qwen2.rms_norm_eps = 1e-6;
  qwen2.rope_theta = 1e6;
  qwen2.attention_bias = true;
  qwen2.shared_expert_gate = true;
  qwen2.shared_expert_intermediate_size = 5632;
  add("qwen1.5-moe-a2.7b", qwen2, {2048, 5632, 24, 16, 16, 128}, {60, 4, 1408});
  qwen2.max_position_embeddings = 131072;
  qwen2.shared_expert_intermediate_size = 20480;
  add("qwen2-57b-a14b", qwen2, {3584, 18944, 28, 28, 4, 128}, {64, 8, 2560});

  Config qwen3;
  qwen3.vocab_size = 151936;
  qwen3.max_position_embeddings = 40960;
  qwen3.rms_norm_eps = 1e-6;
  qwen3.rope_theta = 1e6;
  qwen3.qk_norm = true;
  qwen3.norm_topk_prob = true;
  add("qwen3-30b-a3b", qwen3, {2048, 6144, 48, 32, 4, 128}, {128, 8, 768});
  add("qwen3-235b-a22b", qwen3, {4096, 12288, 94, 64, 4, 128}, {128, 8, 1536});

  Config olmoe;
  olmoe.vocab_size = 50304;
  olmoe.qk_norm_all_heads = true;
  add("olmoe-1b-7b", olmoe, {2048, 1024, 16, 16, 16, 128}, {64, 8, 1024});

  Config dots;
  dots.vocab_size = 152064;
  dots.max_position_embeddings = 32768;
  dots.rope_theta = 1e7;
  dots.qk_norm = true;
  dots.norm_topk_prob = true;
  dots.shared_expert_intermediate_size = 2 * 1408;
  dots.scoring_func = RouterScores::kSigmoid;
  dots.score_correction_bias = true;
  dots.routed_scaling_factor = 2.5;
  dots.dense_layers = {0};
  add("dots.llm1", dots, {4096, 10944, 62, 32, 32, 128}, {128, 6, 1408});
  return all;
}

void FillDependent(Config& c, const ModelFamily::Given& given) {
  FillLlamaDependent(c, given);
  if ((given("hidden_size") || given("intermediate_size")) && !given("moe_intermediate_size")) {
    c.moe_intermediate_size = c.intermediate_size;
  }
  // Nobody's choice follows from a number of experts: Validate() asks for it.
  if (given("num_experts") && !given("num_experts_per_tok")) c.num_experts_per_tok = 0;
}

void CheckGroups(const Config& c, ShapeChecks& checks) {
  const std::string groups = std::to_string(c.n_group), experts = std::to_string(c.num_experts);
  if (c.num_experts % c.n_group != 0) {
    checks.Add("n_group", groups + " groups do not divide " + experts + " experts",
               {"num_experts"});
    return;
  }
  const int64_t in_group = c.num_experts / c.n_group;
  if (c.n_group > 1 && in_group < 2) {
    checks.Add("n_group",
               groups + " groups of " + experts + " experts have one each, and want two or more",
               {"num_experts"});
  }
  if (c.topk_group > c.n_group) {
    checks.Add("topk_group", std::to_string(c.topk_group) + " of " + groups + " groups",
               {"n_group"});
  } else if (c.topk_group * in_group < c.num_experts_per_tok) {
    checks.Add("topk_group",
               "groups of " + std::to_string(in_group) + " experts, of which a token has " +
                   std::to_string(c.topk_group) + ", do not hold the " +
                   std::to_string(c.num_experts_per_tok) + " experts that it is sent to",
               {"n_group", "num_experts", "num_experts_per_tok"});
  }
}

void CheckExperts(const Config& c, ShapeChecks& checks) {
  if (!checks.AreGood({"num_experts"})) return;
  if (c.num_experts_per_tok < 1 || c.num_experts_per_tok > c.num_experts) {
    checks.Add("num_experts_per_tok",
               "want how many experts each token is sent to, from 1 to num_experts = " +
                   std::to_string(c.num_experts) + ", got " + std::to_string(c.num_experts_per_tok),
               {"num_experts"});
  }
  if (checks.AreGood({"moe_intermediate_size"}) &&
      c.moe_intermediate_size > kMaxExpertsWidth / c.num_experts) {
    checks.Add("moe_intermediate_size",
               "all experts together are " + std::to_string(c.moe_intermediate_size) + " x " +
                   std::to_string(c.num_experts) + " wide, and the most is " +
                   std::to_string(kMaxExpertsWidth),
               {"num_experts"});
  }
  if (checks.AreGood({"num_experts_per_tok", "n_group", "topk_group"})) CheckGroups(c, checks);
}

void Validate(const Config& c, ShapeChecks& checks) {
  ValidateLlama(c, checks);
  CheckExperts(c, checks);
  if (c.shared_expert_gate && c.shared_expert_intermediate_size == 0) {
    checks.Add("shared_expert_gate", "there is no shared expert",
               {"shared_expert_intermediate_size"});
  }
  if (c.score_correction_bias && c.scoring_func == RouterScores::kSoftmax) {
    checks.Add("score_correction_bias", "scores of `softmax` have none, only of `sigmoid`",
               {"scoring_func"});
  }
  if (c.qk_norm && c.qk_norm_all_heads) {
    checks.Add("qk_norm_all_heads", "q and k have one kind of norm, and qk_norm is the other",
               {"qk_norm"});
  }
  if (!checks.AreGood({"dense_layers", "num_hidden_layers"})) return;
  for (size_t i = 0; i < c.dense_layers.size(); ++i) {
    const std::string layer = std::to_string(c.dense_layers[i]);
    if (c.dense_layers[i] >= c.num_hidden_layers) {
      checks.Add(
          "dense_layers",
          "there is no block " + layer + ", only 0 to " + std::to_string(c.num_hidden_layers - 1),
          {"num_hidden_layers"});
      return;
    }
    if (i > 0 && c.dense_layers[i] <= c.dense_layers[i - 1]) {
      checks.Add("dense_layers", "want ascending blocks, each once, got " + layer + " behind " +
                                     std::to_string(c.dense_layers[i - 1]));
      return;
    }
  }
}

void Shrink(Config& c) {
  ShrinkLlama(c);
  c.mlp_bias = false;
  c.num_experts = std::clamp<int64_t>(c.num_experts, 1, kMaxExperts);
  c.num_experts_per_tok = c.moe_intermediate_size = c.n_group = c.topk_group = 1;
  c.routed_scaling_factor = 1;
  // Names follow from whether there is one.
  c.shared_expert_intermediate_size = c.shared_expert_intermediate_size > 0 ? 1 : 0;
  c.shared_expert_gate = c.shared_expert_gate && c.shared_expert_intermediate_size > 0;
  c.score_correction_bias = c.score_correction_bias && c.scoring_func == RouterScores::kSigmoid;
  c.qk_norm_all_heads = c.qk_norm_all_heads && !c.qk_norm;
  std::vector<int64_t>& dense = c.dense_layers;
  std::sort(dense.begin(), dense.end());
  dense.erase(std::unique(dense.begin(), dense.end()), dense.end());
  std::erase_if(dense, [&](int64_t layer) { return layer < 0 || layer >= c.num_hidden_layers; });
}

DecoderShape Decoder(const Config& c) {
  DecoderShape shape = DecoderOfLlama(c);
  shape.widest_row =
      std::max({shape.widest_row, 2 * c.num_experts_per_tok * c.moe_intermediate_size,
                2 * c.shared_expert_intermediate_size, c.num_experts});
  return shape;
}

// Llama's names, and in Mixtral's files those of older and newer ones.
HfNames Names() {
  HfNames names = LlamaHfNames();
  names.renamed = {{".block_sparse_moe.", ".mlp."},
                   {".w1.weight", ".gate_proj.weight"},
                   {".w3.weight", ".up_proj.weight"},
                   {".w2.weight", ".down_proj.weight"}};
  return names;
}

std::vector<HfFeature> Features() {
  std::vector<HfFeature> features = LlamaFeatures();
  const std::vector<HfFeature> own = {
      {"q_lora_rank", {}},       {"kv_lora_rank", {}},      {"router_jitter_noise", {"0", "0.0"}},
      {"clip_qkv", {}},          {"moe_layer_freq", {"1"}}, {"num_nextn_predict_layers", {"0"}},
      {"expert_bias", {"false"}}};
  features.insert(features.end(), own.begin(), own.end());
  return features;
}

MixtureShape Mixtures(const Config& c) {
  return {.experts = c.num_experts,
          .experts_per_token = c.num_experts_per_tok,
          .layers = c.num_hidden_layers - std::ssize(c.dense_layers),
          .softmax = c.scoring_func == RouterScores::kSoftmax,
          .has_bias = c.score_correction_bias,
          .hf_aux_loss = c.hf_balance.aux_loss};
}

FamilyTable<Config> Table() {
  return {.name = "moe",
          .rows = Rows(),
          .make = &MakeMoe,
          .relatives = "Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE and dots.llm1",
          .kin = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "dots1"},
          .presets = Presets(),
          .fill_dependent = &FillDependent,
          .validate = &Validate,
          .shrink = &Shrink,
          .decoder = &Decoder,
          .mixture = &Mixtures,
          .expert_pieces = &Config::expert_pieces,
          .head = {"", {"lm_head.weight"}},
          .hf = MoeRelatives(),
          .hf_names = Names(),
          .hf_features = Features(),
          .read_hf = &ReadMoeConfig,
          .write_hf = &WriteMoeConfig,
          .relative_of = &MoeRelativeOf};
}

}  // namespace

namespace moe {

const ModelFamily& Family() {
  static const TableFamily<MoeConfig> family(Table());
  return family;
}

}  // namespace moe

const ModelFamily& FamilyOfConfig(const MoeConfig&) { return moe::Family(); }

}  // namespace fsdp
