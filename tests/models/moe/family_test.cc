#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "models/llama/rows.h"
#include "models/moe/config.h"
#include "models/moe/names.h"
#include "models/shape.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

// The numbers are transformers' (parameters of the model on the meta device).
TEST(MoeFamily, PresetsHaveThePublishedNumbersOfParameters) {
  const std::map<std::string_view, int64_t> published = {
      {"mixtral-8x7b", 46702792704},      {"mixtral-8x22b", 140620634112},
      {"qwen1.5-moe-a2.7b", 14315784192}, {"qwen2-57b-a14b", 57408658944},
      {"qwen3-30b-a3b", 30532122624},     {"qwen3-235b-a22b", 235093634560},
      {"olmoe-1b-7b", 6919161856},        {"dots.llm1", 142774373888},
  };
  std::map<std::string_view, int64_t> ours;
  for (const ModelPreset& preset : FindFamily("moe")->presets()) {
    EXPECT_TRUE(ours.emplace(preset.name, NumParameters(preset.shape)).second) << preset.name;
    EXPECT_TRUE(Validate(preset.shape).empty()) << preset.name;
  }
  EXPECT_EQ(ours, published);
}

MoeConfig Small() {
  MoeConfig c;
  c.hidden_size = 6;
  c.intermediate_size = 10;
  c.num_hidden_layers = 3;
  c.num_attention_heads = c.num_key_value_heads = 2;
  c.head_dim = 4;
  c.vocab_size = 7;
  c.moe_intermediate_size = 5;
  return c;
}

MoeConfig With(const std::function<void(MoeConfig&)>& change) {
  MoeConfig c = Small();
  change(c);
  return c;
}

// Every name with its shape, buffers, too.
std::map<std::string, std::string> Tensors(const ModelShape& shape) {
  std::map<std::string, std::string> all;
  const std::shared_ptr<Model> model = MakeModel(shape);
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* parameter : segment.parameters) {
      for (const ParameterSlice& slice : parameter->slices()) {
        all[slice.name] = slice.shape.ToString();
      }
    }
    for (const ModelBuffer* buffer : segment.buffers) {
      all[buffer->name()] = buffer->shape().ToString();
    }
  }
  return all;
}

TEST(MoeFamily, SmallestAlikeHasTheSameNames) {
  for (const ModelPreset& preset : FindFamily("moe")->presets()) {
    ModelShape shape = preset.shape;
    shape.Set("num_hidden_layers", int64_t{3});
    const ModelShape small = SmallestAlike(shape);
    ASSERT_TRUE(Validate(small).empty()) << preset.name;
    EXPECT_LT(NumParameters(small), 9000) << preset.name;
    std::set<std::string> want, got;
    for (const auto& [name, dims] : Tensors(shape)) want.insert(name);
    for (const auto& [name, dims] : Tensors(small)) got.insert(name);
    EXPECT_EQ(got, want) << preset.name;
  }
  // Also of shapes that cannot be built.
  MoeConfig wrong = With([](MoeConfig& c) {
    c.num_experts = -4;
    c.dense_layers = {7, 1, 1, -2};
    c.qk_norm = c.qk_norm_all_heads = c.shared_expert_gate = c.score_correction_bias = true;
    c.n_group = 0;
  });
  EXPECT_TRUE(Validate(SmallestAlike(wrong)).empty());
}

TEST(MoeFamily, FieldsFollowOthers) {
  EXPECT_EQ(MoeConfig().moe_intermediate_size, MoeConfig().intermediate_size);
  const MoeConfig preset = *FindModelPreset("qwen3-30b-a3b")->As<MoeConfig>();
  const auto fill = [&](const std::string& names, const std::function<void(MoeConfig&)>& change) {
    MoeConfig c = preset;
    change(c);
    ModelShape shape = c;
    shape.family().FillDependent(shape, [&](std::string_view name) {
      return (" " + names + " ").find(" " + std::string(name) + " ") != std::string::npos;
    });
    return *shape.As<MoeConfig>();
  };
  EXPECT_EQ(fill("vocab_size", [](MoeConfig&) {}), preset);
  const auto narrow = [](MoeConfig& c) { c.hidden_size = 1024; };
  EXPECT_EQ(fill("hidden_size", narrow).moe_intermediate_size, 2816);
  EXPECT_EQ(fill("hidden_size moe_intermediate_size", narrow).moe_intermediate_size, 768);
  // A number of experts without a number that a token is sent to.
  const auto more = [](MoeConfig& c) { c.num_experts = 16; };
  EXPECT_EQ(fill("num_experts num_experts_per_tok", more).num_experts_per_tok, 8);
  const auto mistakes = Validate(fill("num_experts", more));
  ASSERT_EQ(mistakes.size(), 1U);
  EXPECT_EQ(mistakes[0].field, "num_experts_per_tok");
  EXPECT_EQ(mistakes[0].message,
            "want how many experts each token is sent to, from 1 to num_experts = 16, got 0");
}

TEST(MoeFamily, NamesEveryMistake) {
  const auto mistake = [](const std::function<void(MoeConfig&)>& change) {
    std::string all;
    for (const ShapeMistake& m : Validate(With(change))) all += m.field + ": " + m.message + "\n";
    return all;
  };
  EXPECT_EQ(mistake([](MoeConfig&) {}), "");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.num_experts_per_tok = 9; }),
            "num_experts_per_tok: want how many experts each token is sent to, from 1 to "
            "num_experts = 8, got 9\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.num_experts = 2000; }),
            "num_experts: want an integer from 1 to 512, got 2000\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.n_group = 3; }),
            "n_group: 3 groups do not divide 8 experts\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.n_group = 8, c.topk_group = 2; }),
            "n_group: 8 groups of 8 experts have one each, and want two or more\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.n_group = 2, c.topk_group = 3; }),
            "topk_group: 3 of 2 groups\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.n_group = 4, c.num_experts_per_tok = 3; }),
            "topk_group: groups of 2 experts, of which a token has 1, do not hold the 3 experts "
            "that it is sent to\n");
  EXPECT_EQ(
      mistake([](MoeConfig& c) { c.n_group = 4, c.topk_group = 2, c.num_experts_per_tok = 4; }),
      "");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.shared_expert_gate = true; }),
            "shared_expert_gate: there is no shared expert\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.score_correction_bias = true; }),
            "score_correction_bias: scores of `softmax` have none, only of `sigmoid`\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.qk_norm = c.qk_norm_all_heads = true; }),
            "qk_norm_all_heads: q and k have one kind of norm, and qk_norm is the other\n");
  EXPECT_EQ(mistake([](MoeConfig& c) {
              c.dense_layers = {0, 3};
            }),
            "dense_layers: there is no block 3, only 0 to 2\n");
  EXPECT_EQ(mistake([](MoeConfig& c) {
              c.dense_layers = {1, 1};
            }),
            "dense_layers: want ascending blocks, each once, got 1 behind 1\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.dense_layers = {-1}; }),
            "dense_layers: want an integer from 0 to 1023, got -1\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.num_experts = 512, c.moe_intermediate_size = 131073; }),
            "moe_intermediate_size: all experts together are 131073 x 512 wide, and the most is "
            "67108864\n");
  EXPECT_EQ(mistake([](MoeConfig& c) { c.head_dim = 3; }),
            "head_dim: 3 cannot be rotated in pairs: it is odd\n");
  EXPECT_EQ(FindFamily("moe")->Find("mlp_bias"), nullptr);
  EXPECT_EQ(FindFamily("moe")->Find("sliding_window"), nullptr);
}

TEST(MoeFamily, LargestShapeDoesNotOverflow) {
  const double h = kMaxHiddenSize, q = 256.0 * kMaxHeads, layers = kMaxHiddenLayers;
  const double elements = layers * (4 * h * q + 3 * h * (1 << 26) + 3 * h * kMaxIntermediateSize);
  EXPECT_LT(elements * 16, static_cast<double>(std::numeric_limits<int64_t>::max()));
}

TEST(MoeFamily, NamesAreThoseOfTheRelative) {
  MoeConfig c = With([](MoeConfig& m) { m.num_hidden_layers = 1, m.num_experts = 3; });
  const std::string layer = "model.layers.0.";
  std::map<std::string, std::string> all = Tensors(c);  // Nobody's: Qwen's names.
  EXPECT_EQ(all.at(layer + "mlp.gate.weight"), "[3, 6]");
  EXPECT_EQ(all.at(layer + "mlp.experts.2.gate_proj.weight"), "[5, 6]");
  EXPECT_EQ(all.at(layer + "mlp.experts.0.down_proj.weight"), "[6, 5]");
  c.norm_topk_prob = true;
  all = Tensors(c);
  EXPECT_EQ(all.at(layer + "block_sparse_moe.gate.weight"), "[3, 6]");
  EXPECT_EQ(all.at(layer + "block_sparse_moe.experts.2.w1.weight"), "[5, 6]");
  EXPECT_EQ(all.at(layer + "block_sparse_moe.experts.2.w3.weight"), "[5, 6]");
  EXPECT_EQ(all.at(layer + "block_sparse_moe.experts.2.w2.weight"), "[6, 5]");
  const ExpertNames mixtral = NamesOf(c);
  EXPECT_EQ(mixtral.gate + mixtral.up + mixtral.down, "w1w3w2");
  c.shared_expert_intermediate_size = 4;
  c.shared_expert_gate = true;
  all = Tensors(c);
  EXPECT_EQ(all.at(layer + "mlp.shared_expert.up_proj.weight"), "[4, 6]");
  EXPECT_EQ(all.at(layer + "mlp.shared_expert_gate.weight"), "[1, 6]");
  c.shared_expert_gate = false;
  c.shared_expert_intermediate_size = 10;
  c.scoring_func = RouterScores::kSigmoid;
  c.score_correction_bias = c.qk_norm = true;
  all = Tensors(c);
  EXPECT_EQ(all.at(layer + "mlp.shared_experts.down_proj.weight"), "[6, 10]");
  EXPECT_EQ(all.at(layer + "mlp.gate.e_score_correction_bias"), "[3]");
  EXPECT_EQ(all.at(layer + "self_attn.q_norm.weight"), "[4]");
  c = With([](MoeConfig& m) { m.qk_norm_all_heads = true, m.dense_layers = {1}; });
  all = Tensors(c);
  EXPECT_EQ(all.at(layer + "self_attn.q_norm.weight"), "[8]");
  EXPECT_EQ(all.at("model.layers.1.mlp.up_proj.weight"), "[10, 6]");
  EXPECT_FALSE(all.contains("model.layers.1.mlp.gate.weight"));
}

// Whatever a recipe lists in keep_fp32, and whatever codes the base has.
TEST(MoeFamily, RoutersAreNeverCoded) {
  MoeConfig c = With([](MoeConfig& m) { m.num_hidden_layers = 1, m.num_experts = 3; });
  c.shared_expert_gate = true;
  c.shared_expert_intermediate_size = 4;
  const std::shared_ptr<Model> model = MakeModel(c);
  std::string plain, coded;
  for (const ModelSegment& segment : model->segments()) {
    for (Parameter* p : segment.parameters) {
      if (p->is_plain()) plain += p->name() + " ";
      p->Freeze();
    }
  }
  EXPECT_EQ(plain, "model.layers.0.mlp.gate.weight model.layers.0.mlp.shared_expert_gate.weight ");
  EXPECT_TRUE(EncodeFrozen(*model, {.base = LoraBase::kNf4}).empty());
  for (const Parameter* p : model->segments()[1].parameters) {
    if (p->code() != WeightCode::kNone) coded += p->name().substr(15) + " ";
  }
  EXPECT_EQ(coded,
            "self_attn.qkv_proj.weight self_attn.o_proj.weight mlp.experts.gate_up_proj.weight "
            "mlp.experts.down_proj.weight mlp.shared_expert.gate_up_proj.weight "
            "mlp.shared_expert.down_proj.weight ");
}

// A coefficient that config.json asks for is no part of the shape.
TEST(MoeFamily, BalanceIsNoPartOfTheShape) {
  MoeConfig asks = Small();
  asks.hf_balance.aux_loss = 0.5;
  EXPECT_EQ(ModelShape(asks), ModelShape(Small()));
  EXPECT_EQ(ShapeFromJson(ShapeToJson(asks), "here"), ModelShape(Small()));
}

// Fields of both families are described once.
TEST(MoeFamily, HasLlamasRows) {
  const ModelFamily& family = FamilyOfConfig(MoeConfig());
  int seen = 0;
  for (const FieldRow<LlamaConfig>& row : LlamaRows()) {
    const Field* const field = family.Find(row.field.name);
    if (field == nullptr) {
      EXPECT_TRUE(row.field.name == "mlp_bias" || row.field.name == "sliding_window");
      continue;
    }
    EXPECT_EQ(field->text, row.field.text);
    ++seen;
  }
  EXPECT_GT(seen, 15);
}

}  // namespace
}  // namespace fsdp
