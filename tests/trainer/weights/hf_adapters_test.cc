// Adapters as PEFT has them. That peft loads them and computes our logits is for
// tools/reference/export_adapters.py to show; here names, shapes and bits are held to its format.
#include "trainer/weights/hf_adapters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "tests/testing/saved_checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/nn/model.h"
#include "trainer/weights/hf_export.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::Json;
using testing::SavedCheckpoint;
using testing::UnusedPath;
using Strings = std::vector<std::string>;

TEST(TargetModules, AreLastPartsWhereAllOfTheirNameAreAdapted) {
  const Strings all = {"h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_proj",
                       "h.1.attn.c_attn", "h.1.attn.c_proj", "h.1.mlp.c_proj"};
  EXPECT_EQ(TargetModules(all, all), (Strings{"c_attn", "c_proj"}));
  EXPECT_EQ(TargetModules({"h.1.attn.c_attn", "h.0.attn.c_attn"}, all), Strings{"c_attn"});
  // `c_proj` would be the MLP's, too.
  EXPECT_EQ(TargetModules({"h.0.attn.c_attn", "h.0.attn.c_proj", "h.1.attn.c_proj"}, all),
            (Strings{"h.0.attn.c_attn", "h.0.attn.c_proj", "h.1.attn.c_proj"}));
}

TEST(ExportAdapters, NamesTheTaskOfItsModel) {
  const auto task = [](const std::string& family, const std::string& fixture, Strings& warnings) {
    const std::string tuned = SavedCheckpoint(
        "task", {"model={family: " + family +
                 ", hidden_size: null, num_hidden_layers: null, num_attention_heads: null, "
                 "vocab_size: null, max_position_embeddings: null, init_from: tests/fixtures/" +
                 family + "/" + fixture + ", lora: {rank: 1}}"});
    const std::string out = UnusedPath("adapters");
    warnings = ExportAdapters(CheckpointHold(tuned), out, {}, nullptr).warnings;
    return Json::parse(ReadWholeFile(out + "/adapter_config.json"))["task_type"];
  };
  Strings warnings;
  EXPECT_EQ(task("gpt2", "odd_heads", warnings), "CAUSAL_LM");
  EXPECT_EQ(task("t5", "gated", warnings), "SEQ_2_SEQ_LM");
  EXPECT_EQ(warnings, Strings());
  EXPECT_TRUE(task("vit", "odd", warnings).is_null());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("peft does not find them there"), std::string::npos);
}

TEST(ExportAdapters, WritesWhatPeftReads) {
  const std::string base = fs::path(SavedCheckpoint("base")).lexically_normal();
  const std::string tuned = SavedCheckpoint(
      "tuned", {"model.init_from=" + base,
                "model.lora={rank: 3, alpha: 6.5, targets: ['*layers.1*q_"
                "proj*', down_proj]}",
                "train.ema={decay: 0.5}", "optimizer.lr=0.5", "schedule={name: constant}"});
  for (const auto& [state, dtype] : {std::pair("master", DType::kFloat32),
                                     {"ema", DType::kFloat32},
                                     {"master", DType::kBFloat16}}) {
    const std::string out = UnusedPath("adapters");
    const AdaptersExported exported =
        ExportAdapters(CheckpointHold(tuned), out, {.dtype = dtype, .state = state}, nullptr);
    EXPECT_EQ(exported.adapters.weights, 3);
    ASSERT_EQ(exported.warnings.size(), 1u);  // The base is a checkpoint of ours.
    EXPECT_EQ(exported.warnings[0].rfind(base + " is no Hugging Face directory", 0), 0u);
    EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 2);
    EXPECT_EQ(Json::parse(ReadWholeFile(out + "/adapter_config.json")),
              (Json{{"peft_type", "LORA"},
                    {"task_type", "CAUSAL_LM"},
                    {"base_model_name_or_path", base},
                    {"revision", nullptr},
                    {"inference_mode", true},
                    {"r", 3},
                    {"lora_alpha", 6.5},
                    {"lora_dropout", 0.0},
                    {"target_modules", {"down_proj", "model.layers.1.self_attn.q_proj"}},
                    {"fan_in_fan_out", false},
                    {"bias", "none"},
                    {"modules_to_save", nullptr},
                    {"init_lora_weights", true},
                    {"use_rslora", false},
                    {"use_dora", false}}));
    const SafetensorsReader file(out + "/adapter_model.safetensors");
    EXPECT_EQ(file.Metadata().at("format"), "pt");
    CheckpointReader checkpoint(tuned);
    int64_t bytes = 0;
    int tensors = 0;
    const auto expect = [&](const std::string& module, int64_t in, int64_t outs) {
      for (const auto& [part, shape] : {std::pair('A', Shape{3, in}), {'B', Shape{outs, 3}}}) {
        const std::string name = "base_model.model." + module + ".lora_" + part + ".weight";
        const SafetensorsInfo& info = file.Info(name);
        EXPECT_EQ(info.shape, (std::vector<int64_t>{shape[0], shape[1]})) << name;
        EXPECT_EQ(info.type, ToSafetensorsType(dtype)) << name;
        std::vector<float> want(static_cast<size_t>(shape.NumElements())), got(want.size());
        checkpoint.Read(state, name, shape, 0, want);
        file.ReadFloat(name, 0, got);
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_NEAR(got[i], want[i], dtype == DType::kFloat32 ? 0 : std::abs(want[i]) / 256);
        }
        EXPECT_NE(want, std::vector<float>(want.size())) << name << " was never trained";
        bytes += info.bytes();
        ++tensors;
      }
    };
    expect("model.layers.0.mlp.down_proj", 256, 32);
    expect("model.layers.1.mlp.down_proj", 256, 32);
    expect("model.layers.1.self_attn.q_proj", 32, 32);
    EXPECT_EQ(file.Names().size(), static_cast<size_t>(tensors));
    EXPECT_EQ(exported.adapters.bytes, bytes);
    EXPECT_THROW(ExportAdapters(CheckpointHold(tuned), out, {}, nullptr), CheckpointError);
  }
  try {
    ExportAdapters(CheckpointHold(base), UnusedPath("none"), {}, nullptr);
    ADD_FAILURE() << "exported";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()),
              base +
                  ": has no adapters: model.lora of its run is null. Without --adapters the "
                  "weights are exported");
  }
}

// Parameters that train whole are PEFT's modules_to_save, under their modules' names. The
// reader of PEFT's directories (peft_adapter_test.cc) finds the weights there that a merged export
// holds.
TEST(ExportAdapters, WritesWhatTrainsWhole) {
  const std::string base = UnusedPath("base");
  const std::string plain = SavedCheckpoint("plain");
  ExportCheckpoint(CheckpointHold(plain), base, "", std::nullopt, {}, nullptr);
  const std::string tuned = SavedCheckpoint(
      "whole", {"model.init_from=" + base,
                "model.lora={rank: 2, targets: [q_proj], dropout: 0.25, full: [lm_head, "
                "'*layers.0.input_layernorm*']}",
                "optimizer.lr=0.5", "schedule={name: constant}"});
  const std::string out = UnusedPath("adapters"), merged = UnusedPath("merged");
  ExportAdapters(CheckpointHold(tuned), out, {}, nullptr);
  const Json config = Json::parse(ReadWholeFile(out + "/adapter_config.json"));
  EXPECT_EQ(config["lora_dropout"], 0.25);
  EXPECT_EQ(config["modules_to_save"], (Json{"model.layers.0.input_layernorm", "lm_head"}));
  const SafetensorsReader file(out + "/adapter_model.safetensors");
  EXPECT_TRUE(file.Contains("base_model.model.lm_head.weight"));
  EXPECT_TRUE(file.Contains("base_model.model.model.layers.0.input_layernorm.weight"));
  ExportCheckpoint(CheckpointHold(tuned), merged, "", std::nullopt, {}, nullptr);
  const WeightSource of_peft = OpenInitialWeights(out), of_merged = OpenInitialWeights(merged),
                     of_base = OpenInitialWeights(base);
  const std::shared_ptr<Model> model = MakeModel(ReadInitialShape(merged));
  int changed = 0;
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* p : segment.parameters) {
      std::vector<float> want(static_cast<size_t>(p->shape().NumElements())), got(want.size());
      std::vector<float> old(want.size());
      of_merged.parameters(*p, 0, want);
      of_peft.parameters(*p, 0, got);
      of_base.parameters(*p, 0, old);
      EXPECT_EQ(got, want) << p->name();
      changed += want != old;
    }
  }
  EXPECT_GE(changed, 3);
}

TEST(ExportAdapters, RefusesATiedTableThatTrains) {
  const std::string base = SavedCheckpoint("tied", {"model.tie_word_embeddings=true"});
  const std::string tuned =
      SavedCheckpoint("tied_tuned", {"model.init_from=" + base, "model.tie_word_embeddings=true",
                                     "model.lora={rank: 2, full: [embed_tokens]}"});
  EXPECT_NE(testing::ErrorOf([&] {
              ExportAdapters(CheckpointHold(tuned), UnusedPath("none"), {}, nullptr);
            }).find("has trained whole and is the model's table and its head"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp
