#include "trainer/weights/hf_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "models/gpt2/gpt2.h"
#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "trainer/core/dtype.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ErrorOf;
using testing::FreshDirectory;

void Spill(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

template <typename T>
void WriteTensor(const std::string& path, const std::string& name, SafetensorsType type,
                 const std::vector<int64_t>& shape, const std::vector<T>& values) {
  const SafetensorsEntry entry{name, type, shape};
  SafetensorsWriter writer(path, {&entry, 1});
  writer.WriteBytes(name, 0, std::as_bytes(std::span(values)));
  writer.Finish();
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
  testing::Json index = {{"metadata", {{"total_size", 21}}},
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
    const testing::Json before = index;
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

Gpt2Config Tiny() {
  return {.hidden_size = 4,
          .intermediate_size = 8,
          .num_hidden_layers = 1,
          .num_attention_heads = 2,
          .vocab_size = 5,
          .max_position_embeddings = 6};
}

// A directory with the tensors of `model`, in `type`, as `change` leaves them.
std::string WriteModel(const HfTensors& model,
                       const std::function<void(std::vector<SafetensorsEntry>&)>& change) {
  const std::string dir = FreshDirectory("model");
  std::vector<SafetensorsEntry> entries;
  for (const auto& tensor : model.tensors()) {
    SafetensorsEntry& entry = entries.emplace_back();
    entry = {tensor.name(), SafetensorsType::kF32, {}};
    for (int i = 0; i < tensor.shape().rank(); ++i) entry.shape.push_back(tensor.shape()[i]);
  }
  change(entries);
  SafetensorsWriter writer(dir + "/model.safetensors", entries);
  for (const SafetensorsEntry& entry : entries) {
    const int64_t bytes = writer.Info(entry.name).bytes();
    writer.WriteBytes(entry.name, 0, std::vector<std::byte>(static_cast<size_t>(bytes)));
  }
  writer.Finish();
  return dir;
}

// Nothing that a file holds is left out without a word.
TEST(HfWeightsTest, RequiresTheModelsTensorsAndNoOthers) {
  const Gpt2 gpt2(Tiny());
  const HfTensors model(gpt2);
  using Entries = std::vector<SafetensorsEntry>;
  const auto error = [&](const std::function<void(Entries&)>& change) {
    const std::string dir = WriteModel(model, change);
    return ErrorOf([&] { HfWeights(dir).RequireAll(model); });
  };
  EXPECT_EQ(error([](Entries&) {}), "");
  EXPECT_EQ(error([](Entries& all) {  // Each of them is of no use.
              all.push_back({"transformer.h.0.attn.bias", SafetensorsType::kBool, {1, 1, 6, 6}});
              all.push_back({"h.0.attn.masked_bias", SafetensorsType::kF32, {}});
              all.push_back({"lm_head.weight", SafetensorsType::kF32, {5, 4}});
            }),
            "");
  EXPECT_NE(error([](Entries& all) { all.erase(all.begin() + 3); }).find("has no parameter '"),
            std::string::npos);
  EXPECT_NE(error([](Entries& all) {
              all[0].shape = {4, 5};
            }).find("has shape [4, 5], want [5, 4]"),
            std::string::npos);
  EXPECT_NE(error([](Entries& all) { all[0].type = SafetensorsType::kI32; }).find("is I32, want"),
            std::string::npos);
  EXPECT_NE(error([](Entries& all) {
              all.push_back({"transformer.h.0.attn.q_norm.weight", SafetensorsType::kF32, {2}});
            })
                .find("holds 'transformer.h.0.attn.q_norm.weight', which the model of its "
                      "config.json does not have"),
            std::string::npos);
  EXPECT_NE(error([](Entries& all) {  // A second layer.
              all.push_back({"transformer.h.1.ln_1.weight", SafetensorsType::kF32, {4}});
            })
                .find("h.1.ln_1.weight"),
            std::string::npos);
}

// Two heads that differ in their last number alone, in another dtype, and in another file.
TEST(HfWeightsTest, ComparesTensorsAsNumbers) {
  const int64_t rows = 40'000, n = rows * 2;  // Longer than what is compared at a time.
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 100) / 8;
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(BFloat16(value).bits);
  const std::string dir = FreshDirectory("heads");
  const auto write = [&](const std::string& file, const std::string& name, const auto& data) {
    const bool is_half = sizeof(data[0]) == 2;
    WriteTensor(dir + "/" + file, name, is_half ? SafetensorsType::kBF16 : SafetensorsType::kF32,
                {rows, 2}, data);
  };
  write("a.safetensors", "transformer.wte.weight", values);
  write("b.safetensors", "lm_head.weight", halves);
  values.back() += 1;
  write("c.safetensors", "x", values);
  values.pop_back();
  WriteTensor(dir + "/d.safetensors", "y", SafetensorsType::kF32, {n - 1}, values);
  Spill(dir + "/model.safetensors.index.json",
        R"({"weight_map": {"transformer.wte.weight": "a.safetensors", "x": "c.safetensors",
            "lm_head.weight": "b.safetensors", "y": "d.safetensors"}})");
  for (int again = 0; again < 2; ++again) {
    const HfWeights weights(dir);
    EXPECT_TRUE(weights.AreEqual("lm_head.weight", "wte.weight"));
    EXPECT_FALSE(weights.AreEqual("lm_head.weight", "x"));
    EXPECT_FALSE(weights.AreEqual("wte.weight", "y"));
  }
  halves[7] = BFloat16(99).bits;  // Another file of the same length is not remembered.
  fs::remove(dir + "/b.safetensors");
  write("b.safetensors", "lm_head.weight", halves);
  EXPECT_FALSE(HfWeights(dir).AreEqual("lm_head.weight", "wte.weight"));
}

// As transformers ties them: by whichever of the copies is there.
TEST(HfWeightsTest, ATiedEmbeddingMayHaveTheHeadsName) {
  Gpt2Config config = Tiny();
  for (const bool tied : {true, false}) {
    config.tie_word_embeddings = tied;
    const Gpt2 gpt2(config);
    const HfTensors model(gpt2);
    const std::string dir = WriteModel(model, [&](std::vector<SafetensorsEntry>& all) {
      if (tied) all.push_back({"lm_head.weight", SafetensorsType::kF32, {5, 4}});
      std::erase_if(all, [](const auto& entry) { return entry.name.ends_with("wte.weight"); });
    });
    EXPECT_EQ(ErrorOf([&] { HfWeights(dir).RequireAll(model); }),
              tied ? "" : dir + ": has no parameter 'transformer.wte.weight'");
    if (!tied) continue;
    std::vector<float> values(20);
    EXPECT_NO_THROW(HfWeights(dir).Fill("wte.weight", Shape{5, 4}, 0, values));
  }
}

TEST(HfWeightsTest, AHeadThatIsDrawnNeedNotBeThere) {
  Gpt2Config config = Tiny();
  config.tie_word_embeddings = false;
  const Gpt2 gpt2(config);
  const HfTensors model(gpt2);
  const std::string dir = WriteModel(model, [&](std::vector<SafetensorsEntry>& all) {
    std::erase_if(all, [](const auto& entry) { return entry.name == "lm_head.weight"; });
  });
  EXPECT_EQ(ErrorOf([&] { HfWeights(dir).RequireAll(model, {"", {"lm_head.weight"}}); }), "");
  EXPECT_EQ(ErrorOf([&] { HfWeights(dir).RequireAll(model); }),
            dir +
                ": has no parameter 'lm_head.weight', so no head: training begins from such files "
                "(model.init_from) and draws one");
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
