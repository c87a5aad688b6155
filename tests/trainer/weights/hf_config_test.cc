#include "trainer/weights/hf_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "models/gpt2/config.h"
#include "models/llama/config.h"
#include "models/regnet/config.h"
#include "models/shape.h"
#include "models/t5/config.h"
#include "models/vit/config.h"
#include "tests/testing/error_of.h"
#include "tests/testing/json.h"
#include "tests/trainer/weights/patched.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using testing::ErrorOf;

using testing::Json;

HfConfig Parse(const std::string& text) { return ParseHfConfig(text, "dir/config.json"); }

const LlamaConfig& Llama(const HfConfig& config) { return *config.shape.As<LlamaConfig>(); }
const Gpt2Config& Gpt2(const HfConfig& config) { return *config.shape.As<Gpt2Config>(); }

// With `members` in place of those of the same names; null removes one.
std::string With(const std::string& text, const Json& members) {
  return testing::Patched(Json::parse(text), members).dump();
}

// The published files, abridged by what is bookkeeping.
const std::string kLlama31 = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
  "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
  "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": true,
  "vocab_size": 128256})";
const std::string kQwen25 = R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
  "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
  "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
  "vocab_size": 151936})";
const std::string kQwen3 = R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
  "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
  "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
  "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})";
const std::string kMistral = R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": false, "vocab_size": 32768})";

TEST(HfConfigTest, ReadsTheFixtures) {
  const Gpt2Config config = Gpt2(ReadHfConfig("tests/fixtures/gpt2/one_head"));
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_hidden_layers, 1);
  EXPECT_EQ(config.num_attention_heads, 1);
  EXPECT_EQ(config.vocab_size, 509);
  EXPECT_EQ(config.max_position_embeddings, 64);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-3);
}

TEST(HfConfigTest, PublishedFilesAreThePresets) {
  const auto preset = [](const char* name) { return *FindModelPreset(name); };
  EXPECT_EQ(Parse(kLlama31).shape, preset("llama3.1-8b"));
  EXPECT_EQ(Parse(kQwen25).shape, preset("qwen2.5-0.5b"));
  EXPECT_EQ(Parse(kQwen3).shape, preset("qwen3-0.6b"));
  EXPECT_EQ(Parse(kMistral).shape, preset("mistral-7b-v0.3"));
  Gpt2Config gpt2 = Gpt2(Parse(R"({"model_type": "gpt2"})"));
  gpt2.embedding_dropout = gpt2.residual_dropout = gpt2.attention_dropout =
      0;  // No part of a shape.
  EXPECT_EQ(ModelShape(gpt2), preset("gpt2-124m"));
  // As transformers 5 writes it: both in one object.
  Json newer = Json::parse(kLlama31);
  newer["rope_parameters"] = Json(newer["rope_scaling"]);  // A copy: a new member moves others.
  newer["rope_parameters"]["rope_theta"] = newer["rope_theta"];
  newer["dtype"] = "bfloat16";
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) newer.erase(key);
  EXPECT_EQ(Parse(newer.dump()).shape, preset("llama3.1-8b"));
}

TEST(HfConfigTest, HasTheDefaultsOfTransformers) {
  Gpt2Config plain;  // With the dropouts that GPT2Config() has.
  plain.embedding_dropout = plain.residual_dropout = plain.attention_dropout = 0.1;
  EXPECT_EQ(Gpt2(Parse(R"({"model_type": "gpt2"})")), plain);
  const Gpt2Config gpt2 = Gpt2(Parse(
      R"({"model_type": "gpt2", "n_embd": 96, "n_inner": null, "attn_pdrop": 0.1, "n_ctx": 7,
          "activation_function": "gelu_pytorch_tanh", "tie_word_embeddings": true})"));
  EXPECT_EQ(gpt2.hidden_size, 96);
  EXPECT_EQ(gpt2.intermediate_size, 384);
  EXPECT_TRUE(plain.tie_word_embeddings && gpt2.tie_word_embeddings);
  EXPECT_FALSE(
      Gpt2(Parse(R"({"model_type": "gpt2", "tie_word_embeddings": false})")).tie_word_embeddings);

  // Printed by LlamaConfig(), MistralConfig(sliding_window=None), Qwen2Config() and Qwen3Config()
  // of transformers 5.23.
  const struct {
    const char* text;
    int64_t inner, groups, head_dim, vocabulary, positions;
    bool bias, norm;
  } cases[] = {
      {R"({"model_type": "llama"})", 11008, 32, 128, 32000, 2048, false, false},
      {R"({"model_type": "mistral", "sliding_window": null})", 14336, 8, 128, 32000, 131072, false,
       false},
      {R"({"model_type": "qwen2"})", 22016, 32, 128, 151936, 32768, true, false},
      {R"({"model_type": "qwen3"})", 22016, 32, 128, 151936, 32768, false, true},
  };
  for (const auto& c : cases) {
    const LlamaConfig config = Llama(Parse(c.text));
    EXPECT_EQ(config.hidden_size, 4096) << c.text;
    EXPECT_EQ(config.intermediate_size, c.inner) << c.text;
    EXPECT_EQ(config.num_hidden_layers, 32) << c.text;
    EXPECT_EQ(config.num_attention_heads, 32) << c.text;
    EXPECT_EQ(config.num_key_value_heads, c.groups) << c.text;
    EXPECT_EQ(config.head_dim, c.head_dim) << c.text;
    EXPECT_EQ(config.vocab_size, c.vocabulary) << c.text;
    EXPECT_EQ(config.max_position_embeddings, c.positions) << c.text;
    EXPECT_EQ(config.rms_norm_eps, 1e-6) << c.text;
    EXPECT_EQ(config.rope_theta, 10000) << c.text;
    EXPECT_EQ(config.rope_scaling, RopeScaling()) << c.text;
    EXPECT_EQ(config.tie_word_embeddings, false) << c.text;
    EXPECT_EQ(config.attention_bias, c.bias) << c.text;
    EXPECT_EQ(config.attention_output_bias, false) << c.text;
    EXPECT_EQ(config.qk_norm, c.norm) << c.text;
  }
  // Values that follow from others, given, null or absent.
  const LlamaConfig heads =
      Llama(Parse(R"({"model_type": "llama", "hidden_size": 96, "num_attention_heads": 6})"));
  EXPECT_EQ(heads.num_key_value_heads, 6);
  EXPECT_EQ(heads.head_dim, 16);
  const LlamaConfig nulls =
      Llama(Parse(With(kQwen3, Json::parse(R"({"num_attention_heads": 8})"))));
  EXPECT_EQ(nulls.head_dim, 128);
  Json null_groups = Json::parse(R"({"model_type": "mistral", "sliding_window": null,
      "num_attention_heads": 64, "num_key_value_heads": null, "head_dim": null})");
  EXPECT_EQ(Llama(Parse(null_groups.dump())).num_key_value_heads, 64);
  EXPECT_EQ(Llama(Parse(null_groups.dump())).head_dim, 64);
}

TEST(HfConfigTest, ReadsWhatDiffersBetweenRelatives) {
  const auto bias = [](const std::string& text, const char* members) {
    const LlamaConfig config = Llama(Parse(With(text, Json::parse(members))));
    return std::pair(config.attention_bias, config.attention_output_bias);
  };
  EXPECT_EQ(bias(kLlama31, R"({"attention_bias": true})"), std::pair(true, true));
  EXPECT_EQ(bias(kQwen3, R"({"attention_bias": true})"), std::pair(true, true));
  EXPECT_EQ(bias(kQwen25, "{}"), std::pair(true, false));
  EXPECT_EQ(bias(kMistral, "{}"), std::pair(false, false));
  EXPECT_TRUE(Llama(Parse(With(kLlama31, {{"mlp_bias", true}}))).mlp_bias);
  // A window that no sequence fills masks nothing.
  EXPECT_EQ(Parse(With(kMistral, {{"sliding_window", 32768}})).shape, Parse(kMistral).shape);

  const auto scaling = [](const char* text) {
    Json json = Json::parse(kMistral);
    json["rope_scaling"] = Json::parse(text);
    return Llama(Parse(json.dump())).rope_scaling;
  };
  EXPECT_EQ(scaling(R"({"type": "linear", "factor": 4})"),
            (RopeScaling{.type = RopeScaling::Type::kLinear, .factor = 4}));
  EXPECT_EQ(scaling(R"({"rope_type": "dynamic", "factor": 2.5})"),
            (RopeScaling{.type = RopeScaling::Type::kDynamic, .factor = 2.5}));
  EXPECT_EQ(scaling(R"({"rope_type": "default"})"), RopeScaling());
  EXPECT_EQ(scaling(R"({"rope_type": "yarn", "factor": 4, "beta_fast": 30, "truncate": false})"),
            (RopeScaling{.type = RopeScaling::Type::kYarn,
                         .factor = 4,
                         .original_max_position_embeddings = 32768,
                         .beta_fast = 30,
                         .truncate = false}));
}

TEST(HfConfigTest, RefusesByNameWhatItDoesNotCompute) {
  const std::string gpt2 = R"({"model_type": "gpt2"})";
  const struct {
    const std::string& base;
    const char* members;
    const char* want;
  } cases[] = {
      {gpt2, R"({"model_type": "mamba"})", "model_type: \"mamba\" is not in this version"},
      {gpt2, R"({"model_type": null})", "model_type: \"none\""},
      {gpt2, R"({"activation_function": "relu"})", "activation_function: \"relu\" is not in this"},
      {gpt2, R"({"scale_attn_weights": false})",
       "scale_attn_weights: false is not in this version"},
      {gpt2, R"({"scale_attn_by_inverse_layer_idx": true})",
       "scale_attn_by_inverse_layer_idx: true"},
      {gpt2, R"({"reorder_and_upcast_attn": true})", "reorder_and_upcast_attn: true"},
      {gpt2, R"({"add_cross_attention": true})", "add_cross_attention: true"},
      {gpt2, R"({"n_head": 5})", "num_attention_heads"},
      {gpt2, R"({"n_layer": 2.5})", "n_layer: 2.5 is not an integer"},
      {gpt2, R"({"n_embd": 0})", "n_embd: 0 is not from 1"},
      {gpt2, R"({"n_embd": 9223372036854775807})", "n_embd"},
      {gpt2, R"({"vocab_size": 18446744073709551615})", "vocab_size"},
      {gpt2, R"({"layer_norm_epsilon": "x"})", "layer_norm_epsilon: \"x\" is not a number"},
      {gpt2, R"({"quantization_config": {"bits": 4}})",
       "quantization_config: names no quant_method"},
      {gpt2, R"({"quantization_config": "gptq"})", "quantization_config: names no quant_method"},
      {kLlama31, R"({"hidden_act": "gelu"})", "hidden_act: \"gelu\" is not in this version"},
      {kLlama31, R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor: 0.5"},
      {kLlama31, R"({"rope_scaling": {"rope_type": "longrope"}})",
       "rope_scaling.rope_type: \"longrope\" is not in this version"},
      {kLlama31, R"({"rope_scaling": {"mrope_section": [1, 2]}})",
       "rope_scaling.mrope_section: is not in this version"},
      {kLlama31, R"({"rope_scaling": {"factor": null}})", "rope_scaling.factor"},
      {kLlama31, R"({"rope_scaling": [1]})", "rope_scaling: a list is not an object"},
      {kLlama31, R"({"num_local_experts": 8})", "num_local_experts: 8 is not in this version"},
      {kLlama31, R"({"num_key_value_heads": 5})", "num_key_value_heads"},
      {kLlama31, R"({"num_attention_heads": 0})", "num_attention_heads"},
      {kLlama31, R"({"attention_bias": 1})", "attention_bias: 1 is not true or false"},
      {kLlama31, R"({"layer_types": ["full_attention", "sliding_attention"]})",
       "layer_types: \"sliding_attention\" is not in this version"},
      {kLlama31, R"({"sliding_window": 4096})", "sliding_window: 4096 is not in this version"},
      {kMistral, R"({"sliding_window": 0})", "sliding_window: 0 is not in this version, only null"},
      {kMistral, R"({"attention_bias": true})", "attention_bias: true is not in this version"},
      {kQwen25, R"({"use_sliding_window": true})", "use_sliding_window: true is not in this"},
      {kQwen25, R"({"attention_bias": false})", "attention_bias: false is not in this version"},
      {kQwen3, R"({"mlp_bias": true})", "mlp_bias: true is not in this version"},
      {kQwen3, R"({"num_experts": 128})", "num_experts: 128 is not in this version"},
      {kQwen3, R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping"},
  };
  for (const auto& c : cases) {
    const std::string text = With(c.base, Json::parse(c.members));
    const std::string error = ErrorOf([&] { Parse(text); });
    EXPECT_NE(error.find(c.want), std::string::npos) << "want '" << c.want << "': " << error << "\n"
                                                     << c.members;
    EXPECT_EQ(error.substr(0, 17), "dir/config.json: ") << error;
  }
  for (const std::string text : {"{", "[]", "", "3", "{\"a\": \xff}"}) {
    EXPECT_NE(ErrorOf([&] { Parse(text); }), "") << text;
  }
  std::string deep = R"({"model_type": "gpt2", "x": )";
  deep += std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_NE(ErrorOf([&] { Parse(deep); }).find("nested more than 100 deep"), std::string::npos);
  EXPECT_NE(ErrorOf([] { Parse(std::string(2 << 20, ' ')); }).find("bytes, the most is"),
            std::string::npos);
  EXPECT_NE(ErrorOf([] { ReadHfConfig("not_there"); }), "");
}

TEST(HfConfigTest, NamesTheMethodOfQuantisedWeights) {
  for (const std::string method :
       {"gptq", "awq", "fp8", "mxfp4", "compressed-tensors", "bitsandbytes_8bit", "hqq"}) {
    const Json members = {{"quantization_config", {{"quant_method", method}, {"bits", 4}}}};
    EXPECT_EQ(ErrorOf<ConfigError>([&] { Parse(With(kLlama31, members)); }),
              "dir/config.json: quantization_config.quant_method: \"" + method +
                  "\" is not in this version, only \"bitsandbytes\" with nf4 in uint8: begin from "
                  "the weights before they were quantised");
  }
  const std::pair<const char*, const char*> forms[] = {
      {R"({"quant_method": 8})", "quant_method: 8 is not"},
      {R"({"quant_method": "bitsandbytes", "load_in_8bit": true})", "load_in_8bit: true is not"},
      {R"({"_load_in_8bit": true})", "load_in_8bit: true is not"},
      {R"({"load_in_4bit": true, "bnb_4bit_quant_type": "fp4"})",
       "bnb_4bit_quant_type: \"fp4\" is not"},
      {R"({"load_in_4bit": true, "bnb_4bit_quant_storage": "bfloat16"})",
       "bnb_4bit_quant_storage: \"bfloat16\" is not"},
  };
  for (const auto& [form, want] : forms) {
    const Json members = {{"quantization_config", Json::parse(form)}};
    EXPECT_EQ(ErrorOf<ConfigError>([&] {
                Parse(With(kLlama31, members));
              }).find("dir/config.json: quantization_config." + std::string(want)),
              0U)
        << form;
  }
}

// Older files do not name the method.
TEST(HfConfigTest, TakesFourBitsOfBitsandbytes) {
  const HfConfig plain = Parse(kLlama31);
  EXPECT_TRUE(plain.notes.empty());
  for (const char* members :
       {R"({"load_in_4bit": true, "load_in_8bit": false, "bnb_4bit_quant_type": "nf4"})",
        R"({"quant_method": "bitsandbytes", "_load_in_4bit": true, "_load_in_8bit": false,
            "bnb_4bit_quant_storage": "uint8", "bnb_4bit_use_double_quant": true,
            "llm_int8_skip_modules": ["lm_head"]})"}) {
    const HfConfig config = Parse(With(kLlama31, {{"quantization_config", Json::parse(members)}}));
    EXPECT_EQ(config.shape, plain.shape);
    EXPECT_EQ(config.ignored, plain.ignored);
    ASSERT_EQ(config.notes.size(), 1U);
    EXPECT_TRUE(config.notes[0].starts_with("weights of linear layers come in bitsandbytes'"));
  }
}

TEST(HfConfigTest, SaysWhichKeysItDidNotLookAt) {
  EXPECT_EQ(Parse(kLlama31).ignored, std::vector<std::string>());
  EXPECT_EQ(Parse(With(kQwen25, {{"some_future_key", 3}})).ignored,
            (std::vector<std::string>{"some_future_key", "use_mrope"}));
  EXPECT_EQ(Parse(R"({"model_type": "gpt2", "resid_pdrop": 0.1, "summary_type": "x"})").ignored,
            (std::vector<std::string>{"summary_type"}));
}

TEST(HfConfigTest, TakesDropoutsOverOrRefusesThemByName) {
  const Gpt2Config gpt2 =
      Gpt2(Parse(R"({"model_type": "gpt2", "attn_pdrop": 0.3, "embd_pdrop": 0.2, "resid_pdrop": 0,
                "summary_first_dropout": 0.1})"));
  EXPECT_EQ(gpt2.attention_dropout, 0.3);
  EXPECT_EQ(gpt2.embedding_dropout, 0.2);
  EXPECT_EQ(gpt2.residual_dropout, 0);
  EXPECT_EQ(Gpt2(Parse(HfConfigToJson(gpt2, "float32"))), gpt2);
  for (const std::string& base : {kLlama31, kQwen25, kQwen3, kMistral}) {
    EXPECT_EQ(Llama(Parse(base)).attention_dropout, 0);
    const LlamaConfig config = Llama(Parse(With(base, {{"attention_dropout", 0.25}})));
    EXPECT_EQ(config.attention_dropout, 0.25);
    EXPECT_EQ(Llama(Parse(HfConfigToJson(config, "float32"))), config);
    for (const char* key : {"hidden_dropout", "resid_pdrop", "embd_pdrop", "layerdrop",
                            "attention_probs_dropout_prob"}) {
      EXPECT_EQ(ErrorOf([&] {
                  Parse(With(base, {{key, 0.1}}));
                }),
                "dir/config.json: " + std::string(key) + ": 0.1 is not in this version, only 0");
      EXPECT_EQ(ErrorOf([&] { Parse(With(base, {{key, 0.0}})); }), "");
    }
  }
  EXPECT_NE(ErrorOf([] {
              Parse(R"({"model_type": "gpt2", "attention_dropout": 0.1})");
            }).find("attention_dropout: 0.1 is not in this version"),
            std::string::npos);
  EXPECT_NE(ErrorOf([] {
              Parse(R"({"model_type": "gpt2", "attn_pdrop": 1.0})");
            }).find("attention_dropout: want a number of at least 0 and below 1"),
            std::string::npos);
}

// transformers' generate() goes by generation_config.json, and by config.json without one.
TEST(HfConfigTest, KnowsWhatEndsAText) {
  const std::string dir = ::testing::TempDir() + "/eos";
  std::filesystem::create_directories(dir);
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir + "/" + name) << text;
  };
  write("config.json", With(kLlama31, {{"eos_token_id", Json({7, 5})}}));
  EXPECT_EQ(ReadHfEos(dir), (std::vector<int32_t>{7, 5}));
  write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(ReadHfEos(dir), (std::vector<int32_t>{7, 5}));
  write("generation_config.json", R"({"eos_token_id": 9})");
  EXPECT_EQ(ReadHfEos(dir), (std::vector<int32_t>{9}));
  write("generation_config.json", "[\n1,]");
  EXPECT_EQ(ErrorOf([&] { ReadHfEos(dir); }),
            dir + "/generation_config.json:2:3: want a value, got ']'");

  const HfTokenIds ids{.bos = 1, .eos = 2, .pad = std::nullopt};
  const Json config = Json::parse(HfConfigToJson(Gpt2Config(), "float32", ids));
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], 2);
  EXPECT_TRUE(config["pad_token_id"].is_null());
  EXPECT_EQ(Json::parse(HfGenerationConfigToJson(ids)),
            Json({{"bos_token_id", 1}, {"eos_token_id", 2}, {"pad_token_id", 2}}));
}

VitConfig VitOf(const HfConfig& config) { return *config.shape.As<VitConfig>(); }

// The hub's google/vit-base-patch16-224, but for its 1,000 names, and what transformers makes of
// absent keys.
TEST(HfConfigTest, ReadsViT) {
  const std::string text = R"({"architectures": ["ViTForImageClassification"],
    "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "image_size": 224, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-06, "model_type": "vit", "num_attention_heads": 12, "num_channels": 3,
    "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": true, "encoder_stride": 16,
    "id2label": {"0": "cat", "1": "dog", "2": "fish"},
    "label2id": {"cat": 0, "dog": 1, "fish": 2}})";
  VitConfig want{.num_labels = 3, .layer_norm_epsilon = 1e-6, .hidden_dropout_prob = 0.1};
  EXPECT_EQ(VitOf(Parse(text)), want);
  EXPECT_EQ(Parse(text).ignored, std::vector<std::string>{"encoder_stride"});
  EXPECT_EQ(VitOf(Parse(R"({"model_type": "vit"})")), VitConfig{.num_labels = 2});
  EXPECT_EQ(VitOf(Parse(R"({"model_type": "vit", "id2label": null, "num_labels": 7})")),
            VitConfig{.num_labels = 7});
  const auto refusal = [](const std::string& member) {
    return ErrorOf([&] { Parse(R"({"model_type": "vit", )" + member + "}"); });
  };
  EXPECT_NE(refusal(R"("hidden_act": "relu")").find("hidden_act"), std::string::npos);
  EXPECT_NE(refusal(R"("problem_type": "regression")").find("problem_type"), std::string::npos);
  EXPECT_NE(refusal(R"("id2label": 3)").find("id2label: is not an object"), std::string::npos);
  EXPECT_NE(refusal(R"("patch_size": 15)").find("patch_size: 15 does not divide image_size 224"),
            std::string::npos);
  EXPECT_NE(refusal(R"("num_attention_heads": 0)").find("num_attention_heads"), std::string::npos);
  const Json written = Json::parse(HfConfigToJson(want, "float32"));
  EXPECT_EQ(written["id2label"], Json({{"0", "LABEL_0"}, {"1", "LABEL_1"}, {"2", "LABEL_2"}}));
  EXPECT_EQ(written["label2id"], Json({{"LABEL_0", 0}, {"LABEL_1", 1}, {"LABEL_2", 2}}));
  EXPECT_EQ(VitOf(Parse(written.dump())), want);
}

// The hub's facebook/regnet-y-040, but for its 1,000 names, and what transformers makes of absent
// keys.
TEST(HfConfigTest, ReadsRegNet) {
  const auto regnet = [](const std::string& text) { return *Parse(text).shape.As<RegNetConfig>(); };
  const std::string text = R"({"architectures": ["RegNetForImageClassification"],
    "depths": [2, 6, 12, 2], "downsample_in_first_stage": true, "embedding_size": 32,
    "groups_width": 64, "hidden_act": "relu", "hidden_sizes": [128, 192, 512, 1088],
    "layer_type": "y", "model_type": "regnet", "num_channels": 3, "torch_dtype": "float32",
    "id2label": {"0": "cat", "1": "dog", "2": "fish"},
    "label2id": {"cat": 0, "dog": 1, "fish": 2}})";
  RegNetConfig want{.num_labels = 3,
                    .hidden_sizes = {128, 192, 512, 1088},
                    .depths = {2, 6, 12, 2},
                    .groups_width = 64};
  EXPECT_EQ(regnet(text), want);
  want.num_labels = 2;
  EXPECT_EQ(regnet(R"({"model_type": "regnet"})"), want);
  want.squeeze_excitation = false;
  want.image_size = 64;
  EXPECT_EQ(regnet(R"({"model_type": "regnet", "layer_type": "x", "image_size": 64})"), want);
  const auto refusal = [](const std::string& member) {
    return ErrorOf([&] { Parse(R"({"model_type": "regnet", )" + member + "}"); });
  };
  EXPECT_NE(refusal(R"("hidden_act": "gelu")").find("hidden_act"), std::string::npos);
  EXPECT_NE(refusal(R"("layer_type": "z")").find("layer_type: is `z`, want `x` or `y`"),
            std::string::npos);
  EXPECT_NE(refusal(R"("depths": [1])").find("depths: 1 depths, for 4 stages"), std::string::npos);
  want.num_labels = 3;
  EXPECT_EQ(regnet(HfConfigToJson(want, "float32")), want);
}

// Under a model_type that transformers does not know, with the recipe's own names.
TEST(HfConfigTest, WritesDeepViTUnderItsOwnType) {
  VitConfig deep = *FindModelPreset("deepvit-8b")->As<VitConfig>();
  deep.head_dim = 32;
  deep.hidden_dropout_prob = 0.25;
  deep.attention_dropout = 0.5;
  const Json written = Json::parse(HfConfigToJson(deep, "bfloat16"));
  EXPECT_EQ(written["model_type"], "deepvit");
  EXPECT_EQ(written["reattention"], "layer_norm");
  EXPECT_EQ(written["num_labels"], 1000);
  EXPECT_EQ(written["attention_dropout"], 0.5);
  EXPECT_EQ(written["layer_norm_epsilon"], 1e-5);
  EXPECT_FALSE(written.contains("id2label"));
  EXPECT_EQ(VitOf(Parse(written.dump())), deep);
  EXPECT_NE(ErrorOf([] {
              Parse(R"({"model_type": "deepvit", "reattention": "none"})");
            }).find("reattention"),
            std::string::npos);
}

// Those of the hub, of transformers 4, with keys that nobody computes with.
const std::string kT5 =
    R"({"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64,
  "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
  "initializer_factor": 1.0, "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06,
  "model_type": "t5", "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": true,
  "pad_token_id": 0, "relative_attention_num_buckets": 32, "vocab_size": 32128})";
const std::string kT5V11 = R"({"architectures": ["T5ForConditionalGeneration"], "d_ff": 1024,
  "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
  "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": true,
  "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 8, "num_heads": 6,
  "num_layers": 8, "output_past": true, "pad_token_id": 0, "relative_attention_num_buckets": 32,
  "tie_word_embeddings": false, "vocab_size": 32128})";

T5Config T5(const HfConfig& config) { return *config.shape.As<T5Config>(); }

TEST(HfConfigTest, ReadsBothVersionsOfT5) {
  const auto preset = [](const char* name) {
    T5Config config = *FindModelPreset(name)->As<T5Config>();
    config.dropout_rate = 0.1;
    return config;
  };
  EXPECT_EQ(T5(Parse(kT5)), preset("t5-small"));
  EXPECT_EQ(T5(Parse(kT5V11)), preset("t5-v1.1-small"));
  EXPECT_EQ(T5(Parse(R"({"model_type": "t5"})")), preset("t5-small"));  // T5Config().
  EXPECT_EQ(Parse(kT5).ignored, (std::vector<std::string>{"n_positions", "output_past"}));
  EXPECT_EQ(Parse(kT5).eos, std::vector<int32_t>{1});
  // The decoder is as deep as the encoder where nothing is said.
  EXPECT_EQ(T5(Parse(With(kT5, {{"num_layers", 3}}))).num_decoder_layers, 3);
  EXPECT_EQ(T5(Parse(R"({"model_type": "t5", "num_layers": 3, "num_decoder_layers": null})"))
                .num_decoder_layers,
            3);
  // As transformers 5 writes them: it says that heads are tied whether they are or not.
  for (const auto& [name, tied, scales] : {std::tuple("relu", true, true),
                                           {"one_head", true, true},
                                           {"gated", false, false},
                                           {"far", false, false},
                                           {"tied_gated", true, false}}) {
    const T5Config config = T5(ReadHfConfig(std::string("tests/fixtures/t5/") + name));
    EXPECT_EQ(config.tie_word_embeddings, tied) << name;
    EXPECT_EQ(config.scale_decoder_outputs, scales) << name;
  }
}

// Files of any T5, with these tensors beside the embedding.
class Files : public HfFiles {
 public:
  Files(std::set<std::string> beside, bool are_copies, std::string embedding = "shared.weight")
      : beside_(std::move(beside)), are_copies_(are_copies), embedding_(std::move(embedding)) {}
  bool Holds(const std::string& tensor) const override {
    return beside_.contains(tensor) || tensor == embedding_ ||
           tensor == "decoder.final_layer_norm.weight";
  }
  bool AreEqual(const std::string& a, const std::string& b) const override {
    EXPECT_TRUE(beside_.contains(a) && b == embedding_) << a << " " << b;
    return are_copies_;
  }

 private:
  std::set<std::string> beside_;
  bool are_copies_;
  std::string embedding_;
};

// T5ForConditionalGeneration.from_pretrained() of transformers 5.23 ties so, with files without a
// head, with a copy of the embedding, and with another head; and config.json alone.
TEST(HfConfigTest, FilesDecideWhetherAHeadIsTied) {
  struct Case {
    Json keys;
    bool alone, scales, notes;  // The first: tied.
  };
  const Case cases[] = {
      {Json::object(), true, true, true},
      {{{"tie_word_embeddings", true}}, true, true, true},
      {{{"tie_word_embeddings", false}}, false, false, false},
      {{{"tie_word_embeddings", true}, {"scale_decoder_outputs", true}}, true, true, false},
      {{{"tie_word_embeddings", true}, {"scale_decoder_outputs", false}}, false, false, false},
      {{{"tie_word_embeddings", false}, {"scale_decoder_outputs", true}}, false, true, false}};
  for (const Case& c : cases) {
    const std::string text = With(kT5, c.keys);
    const Files without({}, false), copy({"lm_head.weight"}, true),
        other({"lm_head.weight"}, false);
    for (const Files* files : {&without, &copy, &other}) {
      const HfConfig config = ParseHfConfig(text, "config.json", files);
      EXPECT_EQ(T5(config).tie_word_embeddings, files != &other) << c.keys;
      EXPECT_EQ(T5(config).scale_decoder_outputs, c.scales) << c.keys;
      EXPECT_EQ(!config.notes.empty(), files == &other && c.notes) << c.keys;
    }
    EXPECT_EQ(T5(Parse(text)).tie_word_embeddings, c.alone) << c.keys;
    EXPECT_EQ(T5(Parse(text)).scale_decoder_outputs, c.scales) << c.keys;
  }
}

TEST(HfConfigTest, AHeadOfItsOwnIsKept) {
  const std::string gpt2 = R"({"model_type": "gpt2"})";
  for (const auto& [text, embedding] :
       {std::pair(gpt2, "wte.weight"),
        {kQwen25, "embed_tokens.weight"},
        {kQwen3, "embed_tokens.weight"},
        {With(kLlama31, {{"tie_word_embeddings", true}}), "embed_tokens.weight"}}) {
    for (const bool is_copy : {true, false}) {
      const Files files({"lm_head.weight"}, is_copy, embedding);
      const HfConfig config = ParseHfConfig(text, "config.json", &files);
      EXPECT_EQ(config.shape.Find("tie_word_embeddings"), FieldValue(is_copy)) << text;
      EXPECT_EQ(config.notes.size(), is_copy ? 0 : 1) << text;
      if (!is_copy) {
        EXPECT_EQ(config.notes[0].find(std::string("lm_head.weight is no copy of ") + embedding), 0)
            << config.notes[0];
        const Json written = Json::parse(HfConfigToJson(config.shape, "float32"));
        EXPECT_EQ(written["tie_word_embeddings"], false);
      }
    }
  }
  // Where config.json does not tie them, nothing is compared.
  const Files files({"lm_head.weight"}, true, "embed_tokens.weight");
  EXPECT_EQ(ParseHfConfig(kLlama31, "config.json", &files).shape, Parse(kLlama31).shape);
}

TEST(HfConfigTest, RefusesFilesOfOtherModels) {
  const auto refused = [](const std::string& text, const HfFiles& files) {
    return ErrorOf([&] { ParseHfConfig(text, "config.json", &files); });
  };
  for (const char* copy : {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}) {
    EXPECT_EQ(refused(kT5, Files({copy}, true)), "");
    EXPECT_EQ(refused(kT5, Files({copy}, false)),
              "config.json: " + std::string(copy) +
                  ": is no copy of shared.weight: stacks with embeddings of their own are not in "
                  "this version");
  }
  struct Encoder : HfFiles {
    bool Holds(const std::string& tensor) const override { return tensor == "shared.weight"; }
    bool AreEqual(const std::string&, const std::string&) const override { return true; }
  };
  EXPECT_EQ(refused(With(kT5, {{"architectures", {"T5EncoderModel"}}}), Encoder()),
            "config.json: architectures: the files beside it hold no decoder, as those of a "
            "T5EncoderModel: an encoder alone is not in this version");
}

// As modeling_rope_utils.py of transformers 5.23 reads them.
TEST(HfConfigTest, ReadsEverySpellingOfAScaling) {
  const auto scaling = [](const char* text, const char* key = "rope_scaling") {
    Json json = Json::parse(kMistral);
    json.erase("rope_scaling");
    json[key] = Json::parse(text);
    return Llama(Parse(json.dump())).rope_scaling;
  };
  using Type = RopeScaling::Type;
  const RopeScaling llama3 = scaling(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192})");
  for (const char* same :
       {R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192.0})",
        R"({"type": "llama3", "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4,
            "original_max_position_embeddings": 8.192e3, "attention_factor": 2, "beta_fast": 7})",
        R"({"type": "linear", "rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
            "high_freq_factor": 4, "original_max_position_embeddings": 8192, "truncate": false})"}) {
    EXPECT_EQ(scaling(same), llama3) << same;
  }
  const RopeScaling yarn{
      .type = Type::kYarn, .factor = 4, .original_max_position_embeddings = 8192};
  const std::string head = R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": )";
  for (const char* same :
       {"8192", "8192.0", R"(8192, "mscale": 1.0, "mscale_all_dim": 0)", R"(8192, "mscale": 0.7)",
        R"(8192, "mscale_all_dim": 1.0)", R"(8192, "mscale": 0.0, "mscale_all_dim": 1.0)",
        R"(8192, "finetuned": true)", R"(8192, "beta_fast": 0, "beta_slow": 0)",
        R"(8192, "low_freq_factor": 3, "attention_factor": null)"}) {
    EXPECT_EQ(scaling((head + same + "}").c_str()), yarn) << same;
  }
  EXPECT_EQ(
      scaling(R"({"type": "yarn", "factor": null, "original_max_position_embeddings": 8192})"),
      yarn);  // 32768 / 8192.
  RopeScaling whole = yarn;
  whole.truncate = false;
  EXPECT_EQ(scaling((head + R"(8192, "truncate": null})").c_str()), whole);
  for (const char* linear : {R"({"type": "linear", "factor": 2})",
                             R"({"type": "linear", "factor": 2.0, "beta_fast": 32,
                                 "original_max_position_embeddings": 4096, "finetuned": false})"}) {
    EXPECT_EQ(scaling(linear), (RopeScaling{.type = Type::kLinear, .factor = 2}));
    EXPECT_EQ(scaling(linear, "rope_parameters"), scaling(linear));
  }
  EXPECT_EQ(scaling(R"({"rope_type": "default", "factor": 3, "mscale": 2})"), RopeScaling());
  // One beside the map counts, and of two maps the older one, unless it is empty.
  Json json = Json::parse(kMistral);
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4}};
  json["original_max_position_embeddings"] = 8192.0;
  EXPECT_EQ(Llama(Parse(json.dump())).rope_scaling, yarn);
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}};
  EXPECT_EQ(Llama(Parse(json.dump())).rope_scaling, yarn);
  json["rope_scaling"] = Json::object();
  EXPECT_EQ(Llama(Parse(json.dump())).rope_scaling.type, Type::kLinear);
  const auto error = [&](const std::string& text) {
    return ErrorOf([&] { scaling(text.c_str()); });
  };
  EXPECT_NE(error(head + "8192.5}").find("original_max_position_embeddings: 8192.5 is not an in"),
            std::string::npos);
  EXPECT_NE(error(head + R"(8192, "attention_factor": 0})").find("rope_scaling.attention_factor"),
            std::string::npos);
  EXPECT_NE(error(R"({"type": "yarn"})").find("`yarn` needs `factor`"), std::string::npos);
}

// Exact as long as no sequence is longer, and written back.
TEST(HfConfigTest, TakesAWindowThatSequencesFit) {
  for (const int64_t window : {1, 16, 4096, 32767}) {
    const LlamaConfig config = Llama(Parse(With(kMistral, {{"sliding_window", window}})));
    EXPECT_EQ(config.sliding_window, window);
    EXPECT_EQ(config.max_position_embeddings, 32768);
    EXPECT_EQ(config.max_positions(), window);
    const Json written = Json::parse(HfConfigToJson(config, "float32"));
    EXPECT_EQ(written["model_type"], "mistral");
    EXPECT_EQ(written["sliding_window"], window);
    EXPECT_EQ(Llama(Parse(written.dump())), config);
  }
  EXPECT_EQ(Llama(Parse(R"({"model_type": "mistral"})")).sliding_window, 4096);  // Its default.
  EXPECT_NE(ErrorOf([] {
              HfConfigToJson(LlamaConfig{.qk_norm = true, .sliding_window = 8}, "float32");
            }).find("sliding_window with qk_norm or a bias"),
            std::string::npos);
}

TEST(HfConfigTest, RefusesWhatIsNoT5) {
  const auto refused = [](const Json& members) {
    return ErrorOf([&] { Parse(With(kT5, members)); });
  };
  const std::string in = "dir/config.json: ";
  EXPECT_EQ(refused({{"feed_forward_proj", "gated-silu"}}),
            in + "feed_forward_proj: \"gated-silu\" is not in this version, only \"relu\" and "
                 "\"gated-gelu\"");
  EXPECT_EQ(refused({{"dense_act_fn", "gelu_new"}}),
            in + "dense_act_fn: \"gelu_new\" is not in this version, only \"relu\"");
  EXPECT_EQ(refused({{"is_encoder_decoder", false}}),
            in + "is_encoder_decoder: false is not in this version, only true");
  EXPECT_EQ(refused({{"decoder_start_token_id", 5}}),
            in + "decoder_start_token_id: 5 is not in this version, only 0");
  EXPECT_EQ(refused({{"d_kv", 300}}), in + "head_dim: want an integer from 1 to 256, got 300");
}

TEST(HfConfigTest, WritesWhatT5NeedsToTrain) {
  const Json json = Json::parse(HfConfigToJson(*FindModelPreset("t5-v1.1-small"), "float32",
                                               {.bos = {}, .eos = 1, .pad = 7}));
  EXPECT_EQ(json["decoder_start_token_id"], 0);
  EXPECT_EQ(json["pad_token_id"], 0);  // The decoder begins with it.
  EXPECT_EQ(json["eos_token_id"], 1);
  EXPECT_EQ(json["tie_word_embeddings"], false);
  EXPECT_EQ(json["scale_decoder_outputs"], false);
  EXPECT_EQ(json["is_encoder_decoder"], true);
  EXPECT_EQ(json["feed_forward_proj"], "gated-gelu");
}

TEST(HfConfigTest, WritesWhatItReads) {
  for (const ModelPreset& preset : ModelPresets()) {
    if (preset.shape.family().hf_types().empty()) continue;
    const std::string text = HfConfigToJson(preset.shape, "bfloat16");
    const HfConfig config = Parse(text);
    EXPECT_EQ(config.shape, preset.shape) << preset.name << "\n" << text;
    EXPECT_EQ(Json::parse(text)["torch_dtype"], "bfloat16");
  }
  LlamaConfig odd{.hidden_size = 96,
                  .num_attention_heads = 4,
                  .num_key_value_heads = 2,
                  .head_dim = 40,
                  .attention_bias = true,
                  .attention_output_bias = true,
                  .mlp_bias = true};
  EXPECT_EQ(Llama(Parse(HfConfigToJson(odd, "float32"))), odd);
  const auto refused = [](LlamaConfig config) {
    return ErrorOf([&] { HfConfigToJson(config, "float32"); });
  };
  odd.attention_bias = false;
  EXPECT_NE(refused(odd).find("attention_output_bias without attention_bias"), std::string::npos);
  EXPECT_NE(refused({.attention_bias = true, .qk_norm = true}).find("qk_norm and a bias of q"),
            std::string::npos);
  EXPECT_NE(refused({.mlp_bias = true, .qk_norm = true}).find("mlp_bias with qk_norm"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp
