#include "trainer/checkpoint/hf_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "trainer/core/dtype.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

std::string FreshDirectory(const std::string& name) {
  const std::string path = testing::TempDir() + "/hf_" + name;
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

void Spill(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

std::string WithConfig(const std::string& text) {
  const std::string dir = FreshDirectory("config");
  Spill(dir + "/config.json", text);
  return dir;
}

template <typename Call>
std::string ErrorOf(Call call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

template <typename T>
void WriteTensor(const std::string& path, const std::string& name, SafetensorsType type,
                 const std::vector<int64_t>& shape, const std::vector<T>& values) {
  const SafetensorsEntry entry{name, type, shape};
  SafetensorsWriter writer(path, {&entry, 1});
  writer.WriteBytes(name, 0, std::as_bytes(std::span(values)));
  writer.Finish();
}

TEST(HfConfigTest, ReadsTheFixtures) {
  const Gpt2Config config = ReadHfGpt2Config("tests/fixtures/gpt2/one_head");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_hidden_layers, 1);
  EXPECT_EQ(config.num_attention_heads, 1);
  EXPECT_EQ(config.vocab_size, 509);
  EXPECT_EQ(config.max_position_embeddings, 64);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-3);
}

TEST(HfConfigTest, HasTheDefaultsOfTransformers) {
  EXPECT_EQ(ReadHfGpt2Config(WithConfig(R"({"model_type": "gpt2"})")), Gpt2Config());
  const Gpt2Config config = ReadHfGpt2Config(WithConfig(
      R"({"model_type": "gpt2", "n_embd": 96, "n_inner": null, "attn_pdrop": 0.1, "n_ctx": 7,
          "activation_function": "gelu_pytorch_tanh", "tie_word_embeddings": true})"));
  EXPECT_EQ(config.hidden_size, 96);
  EXPECT_EQ(config.intermediate_size, 384);
}

TEST(HfConfigTest, RefusesWhatItDoesNotCompute) {
  const struct {
    const char* member;
    const char* want;
  } cases[] = {
      {R"("model_type": "llama")", "model_type: llama is not in this version"},
      {R"("model_type": null)", "model_type: none"},
      {R"("activation_function": "relu")", "activation_function: relu is not in this version"},
      {R"("scale_attn_weights": false)", "scale_attn_weights: false is not in this version"},
      {R"("scale_attn_by_inverse_layer_idx": true)", "scale_attn_by_inverse_layer_idx: true"},
      {R"("reorder_and_upcast_attn": true)", "reorder_and_upcast_attn: true"},
      {R"("add_cross_attention": true)", "add_cross_attention: true"},
      {R"("tie_word_embeddings": false)", "tie_word_embeddings: false"},
      {R"("n_head": 5)", "num_attention_heads"},
      {R"("n_layer": 2.5)", "n_layer: 2.5 is not an integer"},
      {R"("n_embd": 0)", "n_embd: 0 is not from 1"},
      {R"("n_embd": 9223372036854775807)", "n_embd"},
      {R"("vocab_size": 18446744073709551615)", "vocab_size"},
      {R"("layer_norm_epsilon": "x")", "layer_norm_epsilon: \"x\" is not a number"},
  };
  for (const auto& c : cases) {
    const std::string text = std::string(R"({"model_type": "gpt2", )") + c.member + "}";
    const std::string error = ErrorOf([&] { ReadHfGpt2Config(WithConfig(text)); });
    EXPECT_NE(error.find(c.want), std::string::npos) << "want '" << c.want << "': " << error;
    EXPECT_NE(error.find("config.json: "), std::string::npos) << error;
  }
  EXPECT_NE(ErrorOf([] { ReadHfGpt2Config(WithConfig("{")); }), "");
  EXPECT_NE(ErrorOf([] { ReadHfGpt2Config(WithConfig("[]")); }), "");
  EXPECT_NE(ErrorOf([] { ReadHfGpt2Config(FreshDirectory("none")); }), "");
}

TEST(HfWeightsTest, ReadsRangesWithAndWithoutThePrefix) {
  const std::string dir = "tests/fixtures/gpt2/one_head";
  const SafetensorsReader file(dir + "/model.safetensors");
  std::vector<float> want(50), got(50);
  file.ReadFloat("transformer.h.0.mlp.c_fc.weight", 1000, want);
  const HfWeights weights(dir);
  for (const char* name : {"transformer.h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.weight"}) {
    std::fill(got.begin(), got.end(), -1.0f);
    weights.Fill(name, Shape{64, 96}, 1000, got);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), sizeof(float) * 50), 0);
  }
  EXPECT_NE(ErrorOf([&] {
              weights.Fill("h.1.ln_1.bias", Shape{64}, 0, got);
            }).find("one_head: has no parameter 'h.1.ln_1.bias'"),
            std::string::npos);
  for (const Shape& shape : {Shape{96, 64}, Shape{64 * 96}, Shape{64, 96, 1}, Shape{}}) {
    EXPECT_NE(ErrorOf([&] {
                weights.Fill("h.0.mlp.c_fc.weight", shape, 0, got);
              }).find("'h.0.mlp.c_fc.weight' has shape [64, 96], want " + shape.ToString()),
              std::string::npos);
  }
  EXPECT_THROW(weights.Fill("h.0.mlp.c_fc.weight", Shape{64, 96}, 64 * 96 - 49, got),
               std::invalid_argument);
}

// Shards of one model, each tensor in another dtype, names without the prefix, an unknown buffer.
TEST(HfWeightsTest, ReadsSeveralFiles) {
  const std::string dir = FreshDirectory("several");
  WriteTensor<float>(dir + "/a.safetensors", "wte.weight", SafetensorsType::kF32, {3}, {1, 2, -3});
  WriteTensor<uint16_t>(dir + "/b.safetensors", "wpe.weight", SafetensorsType::kBF16, {2},
                        {BFloat16(0.5f).bits, BFloat16(-4).bits});
  WriteTensor<uint16_t>(dir + "/c.safetensors", "ln_f.bias", SafetensorsType::kF16, {2},
                        {Float16(0.25f).bits, Float16(8).bits});
  WriteTensor<uint8_t>(dir + "/d.safetensors", "h.0.attn.bias", SafetensorsType::kU8, {1}, {1});
  nlohmann::json index = {{"metadata", {{"total_size", 21}}},
                          {"weight_map",
                           {{"wte.weight", "a.safetensors"},
                            {"wpe.weight", "b.safetensors"},
                            {"ln_f.bias", "c.safetensors"},
                            {"h.0.attn.bias", "d.safetensors"}}}};
  const auto write_index = [&] { Spill(dir + "/model.safetensors.index.json", index.dump()); };
  write_index();
  const HfWeights weights(dir);
  std::vector<float> two(2);
  weights.Fill("transformer.wte.weight", Shape{3}, 1, two);
  EXPECT_EQ(two, (std::vector<float>{2, -3}));
  weights.Fill("transformer.wpe.weight", Shape{2}, 0, two);
  EXPECT_EQ(two, (std::vector<float>{0.5, -4}));
  weights.Fill("transformer.ln_f.bias", Shape{2}, 0, two);
  EXPECT_EQ(two, (std::vector<float>{0.25, 8}));
  EXPECT_NE(ErrorOf([&] {
              weights.Fill("h.0.attn.bias", Shape{1}, 0, std::span(two).first(1));
            }).find("is U8, want"),
            std::string::npos);

  const auto refused = [&](const char* tensor, const char* file) {
    const nlohmann::json before = index;
    index["weight_map"][tensor] = file;
    write_index();
    index = before;
    return ErrorOf([&] { HfWeights{dir}; });
  };
  EXPECT_NE(refused("wte.weight", "b.safetensors").find("has no tensor 'wte.weight'"),
            std::string::npos);
  EXPECT_NE(refused("wte.weight", "e.safetensors").find("e.safetensors"), std::string::npos);
  EXPECT_NE(refused("wte.weight", "../x").find("not a file's name"), std::string::npos);
  index = {{"weight_map", 3}};
  write_index();
  EXPECT_NE(ErrorOf([&] { HfWeights{dir}; }).find("has no weight_map"), std::string::npos);
}

TEST(HfWeightsTest, SaysWhatIsNotThere) {
  EXPECT_NE(ErrorOf([] {
              HfWeights{FreshDirectory("empty")};
            }).find("holds neither model.safetensors nor model.safetensors.index.json"),
            std::string::npos);
}

TEST(HfWeightsTest, RefusesOneNameTwice) {
  const std::string dir = FreshDirectory("twice");
  const SafetensorsEntry entries[] = {{"wte.weight", SafetensorsType::kF32, {0}},
                                      {"transformer.wte.weight", SafetensorsType::kF32, {0}}};
  SafetensorsWriter(dir + "/model.safetensors", entries).Finish();
  EXPECT_NE(ErrorOf([&] { HfWeights{dir}; }).find("two tensors are called wte.weight"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp
