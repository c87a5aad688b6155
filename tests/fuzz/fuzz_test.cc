#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "models/shape.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/targets.h"
#include "tests/testing/fresh_directory.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/manifest_writer.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/atomic_file.h"
#include "trainer/weights/bnb_tensor.h"
#include "trainer/weights/hf_config.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 2000)) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), c >= ' ' && c < 0x7f ? "%c" : "\\x%02x",
                  static_cast<unsigned char>(c));
    out += escaped;
  }
  return out;
}

// Both outcomes must be common enough to mean something.
void Fuzz(int (*target)(const uint8_t*, size_t), Mutator mutator) {
  int accepted = 0;
  const int inputs = FuzzInputs(100'000);
  for (int i = 0; i < inputs; ++i) {
    const std::string text = mutator.Next();
    try {
      accepted += target(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    } catch (const std::exception& error) {
      FAIL() << "input " << i << ": " << error.what() << "\n" << Printable(text);
    }
  }
  std::printf("%d of %d inputs accepted\n", accepted, inputs);
  EXPECT_GE(accepted, 0.01 * inputs);
  EXPECT_LE(accepted, 0.9 * inputs);
}

std::string Safetensors(const std::string& header, size_t data) {
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i)
    text[static_cast<size_t>(i)] = static_cast<char>(header.size() >> 8 * i);
  return text + header + std::string(data, 'x');
}

TEST(Fuzz, Safetensors) {
  const Strings seeds = {
      Safetensors(R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})", 8),
      Safetensors(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[3],)"
                  R"("data_offsets":[0,6]},"b":{"dtype":"U8","shape":[],"data_offsets":[6,7]},)"
                  R"("e":{"dtype":"F16","shape":[0,4],"data_offsets":[7,7]}}  )",
                  7),
      Safetensors("{}", 0),
      Safetensors(R"({"d":{"shape":[1],"data_offsets":[0,8],"dtype":"F64"}})", 8),
  };
  const Strings words = {"\"dtype\":",
                         "\"shape\":",
                         "\"data_offsets\":",
                         "[0,8]",
                         "[]",
                         "\"F64\"",
                         "\"BOOL\"",
                         "\"I64\"",
                         "{}",
                         ",",
                         "\"__metadata__\":{\"a\":\"b\"},",
                         "null",
                         "-1",
                         "1.0",
                         "\\u0000",
                         "18446744073709551616"};
  Fuzz(FuzzSafetensors, {1, seeds, words, 400});
}

TEST(Fuzz, BnbTensor) {
  Strings seeds;
  for (const WeightCode code : {WeightCode::kNf4, WeightCode::kNf4Nested}) {
    const std::string path = testing::UnusedPath("coded");
    const auto fill = [](int64_t, std::span<uint8_t> records) {
      std::fill(records.begin(), records.end(), uint8_t{0x3c});
    };
    const BnbParts parts("w", {3, 5}, "float16", {code, fill});
    SafetensorsWriter writer(path, parts.entries());
    parts.Write(writer, [](int64_t) {});
    writer.Finish();
    seeds.push_back(ReadWholeFile(path));
  }
  const Strings words = {"\"shape\": [15]",
                         "\"shape\": [1, 15, 1]",
                         "\"shape\":[8,1]",
                         "[1073741824, 1073741824]",
                         "\"nested_offset\": 1e39",
                         "\"nested_blocksize\": 256",
                         "\"blocksize\": 64.0",
                         ".absmax",
                         ".nested_absmax",
                         "\"nf4\"",
                         "\"fp4\"",
                         "[]",
                         "null",
                         "-1",
                         "1.5",
                         "\"U8\""};
  Fuzz(FuzzBnbTensor, {5, seeds, words, 3000});
}

TEST(Fuzz, Manifest) {
  Manifest manifest;
  manifest.meta = {3, 300, 7, "run: {}\n", "{}"};
  manifest.world = manifest.shards = 2;
  manifest.states = ElementStates({"master", "m"}, 1);
  manifest.flat_parameters = {{.name = "root",
                               .parameters = {{"w", Shape{3, 5}, 0}, {"b", Shape{}, 64}},
                               .size = 512,
                               .shard_size = 256}};
  for (int rank = 0; rank < 2; ++rank) {
    ManifestFile file{RankFileName(rank), 2100, 4096, {0x123456789abcdef0}, {}};
    file.slices = {{"master", "root", 256 * rank, 256, 40, 1024},
                   {"m", "root", 256 * rank, 256, 1064, 1024}};
    manifest.files.push_back(file);
  }
  const auto body = [](const Manifest& m) {
    const std::string text = ManifestToText(m);
    return text.substr(text.find('\n') + 1);
  };
  Manifest frozen = manifest;
  frozen.world = frozen.shards = 1;
  frozen.flat_parameters[0].frozen = true;
  frozen.flat_parameters[0].size = frozen.flat_parameters[0].shard_size = 256;
  frozen.files = {{RankFileName(0), 1100, 1 << 20, {1}, {{"master", "root", 0, 256, 72, 1024}}}};
  Manifest mixed = manifest;  // One of each grid and dtype.
  mixed.states = {
      {"master", Grid::kElement, {DType::kBFloat16}, {}},
      {"m", Grid::kElement, {DType::kUInt8}, {}},
      {"factor",
       Grid::kTensor,
       {},
       {{"w.rows", "w", DType::kFloat32, Shape{3}}, {"mean", "", DType::kFloat16, Shape{}}}}};
  for (int rank = 0; rank < 2; ++rank) {
    mixed.files[rank].slices = {{"master", "root", 256 * rank, 256, 40, 512},
                                {"m", "root", 256 * rank, 256, 600, 256}};
  }
  mixed.files[0].slices.push_back({"factor", "", 0, 3, 900, 12, "w.rows"});
  mixed.files[0].slices.push_back({"factor", "", 0, 1, 912, 2, "mean"});
  const Strings words = {"\"slices\": [",
                         "\"units\": [",
                         "\"begin\":256",
                         "\"count\":0",
                         "\"at\":4611686018427387904",
                         "\"shape\":[1073741824,1073741824]",
                         "\"shape\":[]",
                         "\"states\": []",
                         "\"grid\":\"rows\"",
                         "\"grid\":\"tensor\"",
                         "\"fp16\"",
                         "\"uint8\"",
                         "\"bytes\":1024",
                         "\"tensor\":\"mean\"",
                         "\"owner\":\"b\",",
                         "\"version\": 1",
                         "null",
                         "[]",
                         "{}",
                         "true",
                         "1.5",
                         "-1",
                         "\"rank_1.safetensors\""};
  Fuzz(FuzzManifest, {2, {body(manifest), body(frozen), body(mixed)}, words, 3000});
}

TEST(Fuzz, HfConfig) {
  Strings seeds;
  for (const char* name : {"gpt2-124m", "llama3.1-8b", "qwen2.5-0.5b", "qwen3-0.6b"}) {
    seeds.push_back(HfConfigToJson(*FindModelPreset(name), "float32"));
  }
  seeds.push_back(R"({"model_type": "mistral", "sliding_window": null, "rope_parameters":
      {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5, "truncate": false}})");
  const Strings words = {"\"model_type\": \"llama\",",
                         "\"model_type\": \"gpt2\",",
                         "\"head_dim\": 64,",
                         "\"rope_scaling\": {\"type\": \"linear\"},",
                         "\"layer_types\": [\"full_attention\"],",
                         "\"quantization_config\": {},",
                         "\"quantization_config\": {\"load_in_4bit\": true},",
                         "\"num_key_value_heads\": null,",
                         "\"sliding_window\": 4096,",
                         "\"attention_bias\": true,",
                         "\"mlp_bias\": true,",
                         "null",
                         "true",
                         "[[",
                         "1e-5",
                         "\"",
                         "\\ud800"};
  Fuzz(FuzzHfConfig, {3, seeds, words, 1500});
}

TEST(Fuzz, Recipe) {
  const Strings seeds = {
      "model: {family: gpt2, hidden_size: 8}\ndata: {train: {source: synthetic}, valid: null}\n",
      "model:\n  family: llama\n  preset: qwen3-0.6b\ndata:\n  train: {paths: [a, \"b c\"]}\n"
      "optimizer: {lr: 1.0e-3, betas: [0.9, .99]}\n",
      "run: {name: 'x', dir: null}\nmodel: {family: gpt2}\ndata: {train: {source: synthetic}}\n"
      "train: {steps: 3, ema: {decay: 0.5}}\ncheckpoint: {every: 1, resume: none}\n",
  };
  const Strings words = {"train: ",
                         "eval: {every: 1}\n",
                         "fsdp: {sharding_strategy: no_shard}\n",
                         "&a ",
                         "*a",
                         "<<: ",
                         "!!str ",
                         "? ",
                         "|\n  x\n",
                         "- ",
                         "null",
                         "~",
                         "\t",
                         "0x10",
                         ".inf",
                         ".nan",
                         "1_000",
                         "\xc3\xa9",
                         "\xff",
                         "---\n",
                         "...\n",
                         "#",
                         "seq_len: 8",
                         "[",
                         "]",
                         "{",
                         "}",
                         ":"};
  Fuzz(FuzzRecipe, {4, seeds, words, 300});
}

}  // namespace
}  // namespace fsdp
