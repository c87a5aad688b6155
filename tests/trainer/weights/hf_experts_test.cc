// config.json and weights of mixtures of experts, as transformers 4 and 5 write them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/moe/config.h"
#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "tests/trainer/weights/patched.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/nn/lora.h"
#include "trainer/weights/hf_adapters.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"

namespace fsdp {
namespace {

using testing::ErrorOf;
using testing::FreshDirectory;
using testing::Json;

HfConfig Parse(const std::string& text) { return ParseHfConfig(text, "dir/config.json"); }
const MoeConfig& Moe(const HfConfig& config) { return *config.shape.As<MoeConfig>(); }
std::string With(const std::string& text, const char* members) {
  return testing::Patched(Json::parse(text), Json::parse(members)).dump();
}

// The published files, abridged by what is bookkeeping.
const std::string kMixtral = R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
  "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
  "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000})";
const std::string kQwen2 = R"({"attention_dropout": 0.0, "decoder_sparse_step": 1,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632,
  "max_position_embeddings": 8192, "max_window_layers": 21, "model_type": "qwen2_moe",
  "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_attention_heads": 16,
  "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
  "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
  "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})";
const std::string kQwen3 = R"({"attention_bias": false, "attention_dropout": 0.0,
  "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
  "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
  "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
  "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
  "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
  "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})";
const std::string kOlmoe = R"({"attention_bias": false, "attention_dropout": 0.0,
  "clip_qkv": null, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 1024, "max_position_embeddings": 4096, "model_type": "olmoe",
  "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
  "num_hidden_layers": 16, "num_key_value_heads": 16, "output_router_logits": false,
  "pad_token_id": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
  "router_aux_loss_coef": 0.01, "tie_word_embeddings": false, "vocab_size": 50304})";
const std::string kDots = R"({"attention_bias": false, "attention_dropout": 0.0,
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 10944, "max_position_embeddings": 32768,
  "max_window_layers": 62, "model_type": "dots1", "moe_intermediate_size": 1408,
  "moe_layer_freq": 1, "n_group": null, "n_routed_experts": 128, "n_shared_experts": 2,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_experts_per_tok": 6,
  "num_hidden_layers": 62, "num_key_value_heads": 32, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 10000000, "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc",
  "sliding_window": 4096, "tie_word_embeddings": false, "topk_group": null,
  "topk_method": "noaux_tc", "vocab_size": 152064})";

TEST(HfExperts, PublishedFilesAreThePresets) {
  const auto preset = [](const char* name) { return *FindModelPreset(name); };
  EXPECT_EQ(Parse(kMixtral).shape, preset("mixtral-8x7b"));
  EXPECT_EQ(Parse(kQwen2).shape, preset("qwen1.5-moe-a2.7b"));
  EXPECT_EQ(Parse(kQwen3).shape, preset("qwen3-30b-a3b"));
  EXPECT_EQ(Parse(kOlmoe).shape, preset("olmoe-1b-7b"));
  EXPECT_EQ(Parse(kDots).shape, preset("dots.llm1"));
  EXPECT_EQ(Parse(kDots).ignored, (std::vector<std::string>{"scoring_func", "topk_method"}));
  for (const std::string& text : {kMixtral, kQwen2, kQwen3, kOlmoe}) {
    EXPECT_EQ(Parse(text).ignored, std::vector<std::string>()) << text;
  }
}

// As transformers 5 writes it.
TEST(HfExperts, NewerFilesSayTheSame) {
  const std::string newer = With(kQwen3, R"({"num_experts": null, "num_local_experts": 128,
      "rope_theta": null, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})");
  EXPECT_EQ(Parse(newer).shape, *FindModelPreset("qwen3-30b-a3b"));
  const std::string qwen2 = With(kQwen2, R"({"sliding_window": 0, "qkv_bias": true,
      "layer_types": ["full_attention"]})");
  EXPECT_EQ(Parse(qwen2).shape, *FindModelPreset("qwen1.5-moe-a2.7b"));
  EXPECT_EQ(Parse(With(kMixtral, R"({"num_local_experts": null, "num_experts": 8})")).shape,
            *FindModelPreset("mixtral-8x7b"));
  EXPECT_EQ(Parse(With(kDots, R"({"n_routed_experts": null, "num_local_experts": 128})")).shape,
            *FindModelPreset("dots.llm1"));
}

TEST(HfExperts, ExportedPresetsReadBack) {
  for (const ModelPreset& preset : FindFamily("moe")->presets()) {
    EXPECT_EQ(Parse(HfConfigToJson(preset.shape, "bfloat16")).shape, preset.shape) << preset.name;
  }
  const Json qwen3 = Json::parse(HfConfigToJson(*FindModelPreset("qwen3-30b-a3b"), "float32"));
  EXPECT_EQ(qwen3.at("num_experts"), 128);        // transformers 4 reads this,
  EXPECT_EQ(qwen3.at("num_local_experts"), 128);  // and 5 writes this.
}

// Printed by MixtralConfig() and so on of transformers 5.23.
TEST(HfExperts, HasTheDefaultsOfTransformers) {
  const MoeConfig mixtral = Moe(Parse(R"({"model_type": "mixtral"})"));
  EXPECT_EQ(mixtral.max_position_embeddings, 131072);
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.num_key_value_heads, 8);
  EXPECT_EQ(mixtral.head_dim, 128);
  EXPECT_EQ(mixtral.moe_intermediate_size, 14336);
  EXPECT_EQ(mixtral.num_experts, 8);
  EXPECT_EQ(mixtral.num_experts_per_tok, 2);
  const MoeConfig qwen2 = Moe(Parse(R"({"model_type": "qwen2_moe"})"));
  EXPECT_TRUE(qwen2.attention_bias && !qwen2.attention_output_bias && qwen2.shared_expert_gate);
  EXPECT_EQ(qwen2.shared_expert_intermediate_size, 5632);
  EXPECT_EQ(qwen2.num_experts, 60);
  EXPECT_EQ(qwen2.moe_intermediate_size, 1408);
  const MoeConfig qwen3 = Moe(Parse(R"({"model_type": "qwen3_moe"})"));
  EXPECT_EQ(qwen3.head_dim, 64);  // 2048 / 32: this class has no width of its own.
  EXPECT_EQ(qwen3.num_key_value_heads, 4);
  EXPECT_EQ(qwen3.num_experts, 128);
  EXPECT_EQ(qwen3.norm_topk_prob, false);
  const MoeConfig olmoe = Moe(Parse(R"({"model_type": "olmoe"})"));
  EXPECT_EQ(olmoe.moe_intermediate_size, 2048);
  EXPECT_EQ(olmoe.num_key_value_heads, 16);
  EXPECT_EQ(olmoe.rope_theta, 10000);
  const std::string dots = R"({"model_type": "dots1", "n_routed_experts": 4,
      "num_experts_per_tok": 2, "n_shared_experts": 1})";
  EXPECT_EQ(Moe(Parse(dots)).hidden_size, 4608);
  EXPECT_EQ(Moe(Parse(dots)).shared_expert_intermediate_size, 1408);
  EXPECT_TRUE(Moe(Parse(dots)).dense_layers.empty());
}

TEST(HfExperts, ReadsWhichLayersAreDense) {
  const auto dense = [](const std::string& text, const char* members) {
    return Moe(Parse(With(text, members))).dense_layers;
  };
  using Layers = std::vector<int64_t>;
  EXPECT_EQ(dense(kQwen3, R"({"mlp_only_layers": [5, 2, 99]})"), (Layers{2, 5}));
  EXPECT_EQ(dense(kQwen2, R"({"num_hidden_layers": 5, "decoder_sparse_step": 2})"),
            (Layers{0, 2, 4}));
  EXPECT_EQ(dense(kDots, R"({"first_k_dense_replace": 3})"), (Layers{0, 1, 2}));
  EXPECT_EQ(dense(kMixtral, R"({"mlp_only_layers": [1], "decoder_sparse_step": 2})"), Layers());
}

TEST(HfExperts, ReadsTheBalanceThatAFileAsksFor) {
  const auto aux = [](const std::string& text, const char* members) {
    return Moe(Parse(With(text, members))).hf_balance.aux_loss;
  };
  EXPECT_EQ(aux(kMixtral, "{}"), 0);
  EXPECT_EQ(aux(kMixtral, R"({"output_router_logits": true})"), 0.02);
  EXPECT_EQ(aux(kOlmoe, R"({"output_router_logits": true, "router_aux_loss_coef": null})"), 0.01);
  EXPECT_EQ(aux(kDots, R"({"output_router_logits": true})"), 0);
}

TEST(HfExperts, RefusesByNameWhatItDoesNotCompute) {
  const struct {
    const std::string& base;
    const char* members;
    const char* want;
  } cases[] = {
      {kMixtral, R"({"router_jitter_noise": 0.1})", "router_jitter_noise: 0.1 is not in this"},
      {kMixtral, R"({"sliding_window": 4096})", "sliding_window: 4096 is not in this version"},
      {kMixtral, R"({"attention_bias": true})", "attention_bias: true is not in this version"},
      {kMixtral, R"({"num_experts": 9})", "num_local_experts: 8 is not num_experts, 9"},
      {kMixtral, R"({"num_experts_per_tok": 9})", "num_experts_per_tok: want how many experts"},
      {kMixtral, R"({"mlp_bias": true})", "mlp_bias: true is not in this version"},
      {kOlmoe, R"({"clip_qkv": 8.0})", "clip_qkv: 8.0 is not in this version, only null"},
      {kOlmoe, R"({"expert_bias": true})", "expert_bias: true is not in this version"},
      {kQwen2, R"({"use_sliding_window": true})", "use_sliding_window: true is not in this"},
      {kQwen2, R"({"decoder_sparse_step": 0})", "decoder_sparse_step: 0 is not from 1"},
      {kQwen3, R"({"layer_types": ["sliding_attention"]})", "layer_types: \"sliding_attention\""},
      {kQwen3, R"({"num_experts": 0})", "num_experts: want an integer from 1"},
      {kDots, R"({"q_lora_rank": 1536})", "q_lora_rank: 1536 is not in this version, only null"},
      {kDots, R"({"kv_lora_rank": 512})", "kv_lora_rank: 512 is not in this version, only null"},
      {kDots, R"({"num_nextn_predict_layers": 1})", "num_nextn_predict_layers: 1 is not in this"},
      {kDots, R"({"moe_layer_freq": 2})", "moe_layer_freq: 2 is not in this version"},
      {kDots, R"({"max_window_layers": 61})", "sliding_window: 4096 is not in this version"},
      {kDots, R"({"num_experts_per_tok": null})", "num_experts_per_tok: want how many experts"},
      {kDots, R"({"n_routed_experts": null})", "num_experts: want an integer from 1"},
      {kDots, R"({"n_group": 3})", "n_group: 3 groups do not divide 128 experts"},
      {kDots, R"({"n_shared_experts": -1})", "n_shared_experts: -1 is not from 0"},
  };
  for (const auto& c : cases) {
    const std::string error = ErrorOf([&] { Parse(With(c.base, c.members)); });
    EXPECT_NE(error.find(c.want), std::string::npos) << "want '" << c.want << "': " << error;
  }
}

TEST(HfExperts, RefusesToExportWhatNobodyHas) {
  const auto error = [](const char* preset, const auto& change) {
    MoeConfig c = *FindModelPreset(preset)->As<MoeConfig>();
    change(c);
    return ErrorOf([&] { HfConfigToJson(c, "float32"); });
  };
  const auto want = [](const std::string& what) {
    return "no model of transformers has " + what + ": this one cannot be exported";
  };
  EXPECT_EQ(error("mixtral-8x7b", [](MoeConfig& c) { c.norm_topk_prob = false; }),
            want("norm_topk_prob false without norms of q and k or shared_expert_gate"));
  EXPECT_EQ(error("mixtral-8x7b", [](MoeConfig& c) { c.dense_layers = {1}; }),
            want("dense_layers without qk_norm or shared_expert_gate"));
  EXPECT_EQ(error("mixtral-8x7b", [](MoeConfig& c) { c.n_group = 2; }),
            want("softmax scores with n_group"));
  EXPECT_EQ(error("qwen1.5-moe-a2.7b", [](MoeConfig& c) { c.shared_expert_gate = false; }),
            want("a shared expert without shared_expert_gate"));
  EXPECT_EQ(error("qwen3-30b-a3b", [](MoeConfig& c) { c.routed_scaling_factor = 2; }),
            want("softmax scores with routed_scaling_factor"));
  EXPECT_EQ(error("qwen3-30b-a3b", [](MoeConfig& c) { c.attention_bias = true; }),
            want("norms of q and k with attention_bias and no attention_output_bias"));
  EXPECT_EQ(error("olmoe-1b-7b", [](MoeConfig& c) { c.shared_expert_intermediate_size = 8; }),
            want("norms of q and k with softmax scores and a shared expert"));
  EXPECT_EQ(error("dots.llm1", [](MoeConfig& c) { c.dense_layers = {1}; }),
            want("sigmoid scores, and other dense_layers than the first ones"));
  EXPECT_EQ(error("dots.llm1", [](MoeConfig& c) { c.score_correction_bias = false; }),
            want("sigmoid scores without score_correction_bias"));
  EXPECT_EQ(error("dots.llm1", [](MoeConfig& c) { c.shared_expert_intermediate_size = 9; }),
            want("sigmoid scores, and a shared expert that is not some experts wide"));
}

// Written by transformers 5.23: tools/reference/moe.py.
std::string Fixture(const std::string& name) { return "tests/fixtures/moe/" + name; }

TEST(HfExperts, ReadsTheFixtures) {
  for (const char* name : {"mixtral_5_2", "mixtral_3_3", "qwen2_6_4", "qwen2_4_1", "qwen3_7_2",
                           "qwen3_4_1", "olmoe_6_3", "olmoe_8_2", "dots_8_3", "dots_5_2"}) {
    const HfConfig config = ReadHfConfig(Fixture(name));
    EXPECT_EQ(config.ignored, std::vector<std::string>()) << name;
    EXPECT_EQ(Parse(HfConfigToJson(config.shape, "float32")).shape, config.shape) << name;
    const auto model = MakeModel(config.shape);
    EXPECT_EQ(ErrorOf([&] { HfWeights(Fixture(name)).RequireAll(HfTensors(*model)); }), "") << name;
  }
  const MoeConfig dots = Moe(ReadHfConfig(Fixture("dots_8_3")));
  EXPECT_EQ(dots.n_group, 4);
  EXPECT_EQ(dots.topk_group, 2);
  EXPECT_EQ(dots.routed_scaling_factor, 2.5);
  EXPECT_EQ(dots.dense_layers, std::vector<int64_t>{0});
  EXPECT_EQ(dots.shared_expert_intermediate_size, 6);
  EXPECT_EQ(Moe(ReadHfConfig(Fixture("qwen2_6_4"))).dense_layers, std::vector<int64_t>{1});
  EXPECT_EQ(Moe(ReadHfConfig(Fixture("mixtral_5_2"))).head_dim, 4);
}

// The same weights, saved by transformers in both ways.
TEST(HfExperts, TensorsOfAllExpertsAreTheirParts) {
  for (const char* name : {"mixtral_5_2", "dots_8_3"}) {
    const std::string dir = FreshDirectory(name);
    std::filesystem::copy(Fixture(name) + "/fused.safetensors", dir + "/model.safetensors");
    const auto model = MakeModel(ReadHfConfig(Fixture(name)).shape);
    const HfTensors tensors(*model);
    const HfWeights fused(dir), whole(Fixture(name));
    EXPECT_EQ(ErrorOf([&] { fused.RequireAll(tensors); }), "") << name;
    for (const HfTensors::Tensor& t : tensors.tensors()) {
      if (t.buffer != nullptr) continue;
      const auto n = static_cast<size_t>(t.shape().NumElements());
      std::vector<float> want(n), got(n), end(3);
      whole.Fill(t.name(), t.shape(), 0, want);
      fused.Fill(t.name(), t.shape(), 0, got);
      EXPECT_EQ(got, want) << t.name();
      fused.Fill(t.name(), t.shape(), static_cast<int64_t>(n) - 3, end);
      EXPECT_EQ(end, std::vector<float>(want.end() - 3, want.end())) << t.name();
      EXPECT_THROW(fused.Fill(t.name(), t.shape(), static_cast<int64_t>(n) - 2, end),
                   std::invalid_argument);
    }
    for (const HfTensors::Tensor& t : tensors.tensors()) {
      if (t.buffer == nullptr) continue;
      std::vector<float> values(8);
      fused.FillBuffer(
          *t.buffer, 0,
          View(std::as_writable_bytes(std::span(values)).data(), DType::kFloat32, Shape{8}));
      EXPECT_NE(values, std::vector<float>(8)) << t.name();
    }
  }
}

using Entries = std::vector<SafetensorsEntry>;

// A directory with these tensors, all zero.
std::string Write(const Entries& entries) {
  const std::string dir = FreshDirectory("experts");
  SafetensorsWriter writer(dir + "/model.safetensors", entries);
  for (const SafetensorsEntry& entry : entries) {
    const int64_t bytes = writer.Info(entry.name).bytes();
    writer.WriteBytes(entry.name, 0, std::vector<std::byte>(static_cast<size_t>(bytes)));
  }
  writer.Finish();
  return dir;
}

// The mistake that is found in a directory of mixtral_5_2 whose tensors `change` has changed.
std::string Mistake(const std::string& file, const std::function<void(Entries&)>& change) {
  const SafetensorsReader reader(Fixture("mixtral_5_2") + "/" + file);
  Entries entries;
  for (const std::string& name : reader.Names()) {
    entries.push_back({name, reader.Info(name).type, reader.Info(name).shape});
  }
  change(entries);
  const std::string dir = Write(entries);
  const auto model = MakeModel(ReadHfConfig(Fixture("mixtral_5_2")).shape);
  std::string error = ErrorOf([&] { HfWeights(dir).RequireAll(HfTensors(*model)); });
  if (const size_t at = error.find(dir); at != std::string::npos) error.erase(at, dir.size());
  return error;
}

SafetensorsEntry& Named(Entries& all, const std::string& name) {
  return *std::find_if(all.begin(), all.end(),
                       [&](const auto& entry) { return entry.name == name; });
}

TEST(HfExperts, NamesTheExpertThatADirectoryLacks) {
  const std::string layer = "model.layers.1.";
  EXPECT_EQ(Mistake("model.safetensors", [](Entries&) {}), "");
  EXPECT_EQ(Mistake("model.safetensors",
                    [&](Entries& all) {
                      const std::string gone = layer + "block_sparse_moe.experts.4.w2.weight";
                      std::erase_if(all, [&](const auto& entry) { return entry.name == gone; });
                    }),
            ": has no parameter 'model.layers.1.block_sparse_moe.experts.4.w2.weight'");
  EXPECT_EQ(Mistake("model.safetensors",
                    [&](Entries& all) {
                      all.push_back({layer + "block_sparse_moe.experts.5.w2.weight",
                                     SafetensorsType::kF32,
                                     {9, 5}});
                    }),
            ": holds 'model.layers.1.block_sparse_moe.experts.5.w2.weight', which the model of its "
            "config.json does not have");
}

TEST(HfExperts, RefusesTensorsOfAllExpertsOfAnotherShape) {
  const std::string up = "model.layers.1.mlp.experts.gate_up_proj",
                    down = "model.layers.0.mlp.experts.down_proj";
  const auto reshaped = [&](const std::string& name, const std::vector<int64_t>& shape) {
    return Mistake("fused.safetensors", [&](Entries& all) { Named(all, name).shape = shape; });
  };
  const auto want = [](const std::string& name, const std::string& has, const std::string& wants) {
    return "/model.safetensors: '" + name + "' has shape [" + has + "], want [" + wants + "]";
  };
  EXPECT_EQ(reshaped(up, {5, 10, 9}), "");
  EXPECT_EQ(reshaped(up, {4, 10, 9}), want(up, "4, 10, 9", "5, 10, 9"));
  EXPECT_EQ(reshaped(up, {6, 10, 9}), want(up, "6, 10, 9", "5, 10, 9"));
  EXPECT_EQ(reshaped(up, {5, 9, 10}), want(up, "5, 9, 10", "5, 10, 9"));
  EXPECT_EQ(reshaped(up, {50, 9}), want(up, "50, 9", "5, 10, 9"));
  EXPECT_EQ(reshaped(down, {5, 5, 9}), want(down, "5, 5, 9", "5, 9, 5"));
  // Twice, once in parts.
  EXPECT_NE(Mistake("fused.safetensors",
                    [&](Entries& all) {
                      all.push_back({"model.layers.0.block_sparse_moe.experts.0.w1.weight",
                                     SafetensorsType::kF32,
                                     {5, 9}});
                    })
                .find("two tensors are called layers.0.mlp.experts.0.gate_proj.weight"),
            std::string::npos);
  // Biases of experts, which this version does not have.
  EXPECT_EQ(Mistake("fused.safetensors",
                    [&](Entries& all) {
                      all.push_back({up + "_bias", SafetensorsType::kF32, {5}});
                    }),
            ": holds 'model.layers.1.mlp.experts.gate_up_proj_bias', which the model of its "
            "config.json does not have");
}

// PEFT 0.21 takes gate_proj for experts' alone.
TEST(HfExperts, AdaptersThatPeftLosesAreNamed) {
  MoeConfig config;
  config.hidden_size = config.intermediate_size = config.moe_intermediate_size = 8;
  config.num_hidden_layers = config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.vocab_size = 16;
  const auto lost = [&](std::vector<std::string> targets) {
    return LostBesideExperts(LoraModel(MakeMoe(config), {.targets = std::move(targets)}));
  };
  EXPECT_EQ(lost({"*"}), "");
  config.dense_layers = {0};
  EXPECT_EQ(lost({"*"}), "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(lost({"*experts*", "q_proj"}), "");
  EXPECT_EQ(lost({"*layers.0.*"}), "");
  config.dense_layers = {};
  config.shared_expert_intermediate_size = 8;
  EXPECT_EQ(lost({"gate_proj"}), "model.layers.0.mlp.shared_expert.gate_proj.weight");
}

}  // namespace
}  // namespace fsdp
