// Hugging Face directories in and out: the same bits, whatever lies between.
#include "trainer/weights/hf_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "models/gpt2/config.h"
#include "models/llama/config.h"
#include "models/shape.h"
#include "models/t5/config.h"
#include "models/vit/config.h"
#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ErrorOf;
using testing::FreshDirectory;
using testing::Json;
using Strings = std::vector<std::string>;

Strings List(const std::string& directory) {
  Strings names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Every tensor of every file: dtype, shape and bits, under its name in the file.
struct Tensor {
  std::string type;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  bool operator==(const Tensor&) const = default;
};
std::map<std::string, Tensor> Contents(const std::string& directory) {
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : List(directory)) {
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    const SafetensorsReader file(directory + "/" + name);
    for (const std::string& tensor : file.Names()) {
      const SafetensorsInfo& info = file.Info(tensor);
      Tensor& t = tensors[tensor];
      EXPECT_TRUE(t.bytes.empty()) << tensor << " is in two files";
      t = {std::string(Name(info.type)), info.shape,
           std::vector<std::byte>(static_cast<size_t>(info.bytes()))};
      file.ReadBytes(tensor, 0, t.bytes);
    }
  }
  return tensors;
}

void ExpectSame(const std::map<std::string, Tensor>& got, const std::map<std::string, Tensor>& want,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, tensor] : want) {
    const auto it = got.find(name);
    ASSERT_TRUE(it != got.end()) << what << ": no " << name;
    EXPECT_EQ(it->second.type, tensor.type) << what << ": " << name;
    EXPECT_EQ(it->second.shape, tensor.shape) << what << ": " << name;
    EXPECT_TRUE(it->second.bytes == tensor.bytes) << what << ": " << name;
  }
}

// The shapes under test: each a small model of what config.json tells apart.
std::vector<std::pair<std::string, ModelShape>> Shapes() {
  const Gpt2Config gpt2{.hidden_size = 24,
                        .intermediate_size = 40,
                        .num_hidden_layers = 2,
                        .num_attention_heads = 3,
                        .vocab_size = 37,
                        .max_position_embeddings = 20};
  const LlamaConfig llama{.hidden_size = 24,
                          .intermediate_size = 44,
                          .num_hidden_layers = 2,
                          .num_attention_heads = 6,
                          .num_key_value_heads = 2,
                          .head_dim = 6,
                          .vocab_size = 37,
                          .max_position_embeddings = 20};
  Gpt2Config untied = gpt2;
  untied.tie_word_embeddings = false;
  LlamaConfig biased = llama, qwen2 = llama, qwen3 = llama;
  biased.attention_bias = biased.attention_output_bias = biased.mlp_bias = true;
  qwen2.attention_bias = qwen2.tie_word_embeddings = true;
  qwen3.qk_norm = qwen3.tie_word_embeddings = true;
  const T5Config t5{.hidden_size = 24,
                    .intermediate_size = 40,
                    .num_hidden_layers = 2,
                    .num_decoder_layers = 1,
                    .num_attention_heads = 3,
                    .head_dim = 6,
                    .vocab_size = 37};
  T5Config gated = t5, tied_gated = t5;  // As transformers 5 has v1.1 from nothing.
  gated.gated_mlp = tied_gated.gated_mlp = true;
  gated.tie_word_embeddings = gated.scale_decoder_outputs = false;
  tied_gated.scale_decoder_outputs = false;
  const VitConfig vit{.image_size = 6,
                      .patch_size = 2,
                      .num_labels = 5,
                      .hidden_size = 24,
                      .intermediate_size = 40,
                      .num_hidden_layers = 2,
                      .num_attention_heads = 3,
                      .head_dim = 8};
  VitConfig deepvit = vit;
  deepvit.head_dim = 5;
  deepvit.qkv_bias = false;
  deepvit.reattention = Reattention::kLayerNorm;
  deepvit.layer_norm_epsilon = 1e-5;
  return {{"gpt2", gpt2},   {"untied", untied}, {"llama", llama},    {"biased", biased},
          {"qwen2", qwen2}, {"qwen3", qwen3},   {"t5", t5},          {"tied_gated", tied_gated},
          {"gated", gated}, {"vit", vit},       {"deepvit", deepvit}};
}

HfExported Export(const std::string& checkpoint, const std::string& out,
                  const HfExportOptions& options, const ByteProgress& progress) {
  CheckpointReader reader(checkpoint);
  const ModelShape shape = ShapeFromJson(reader.manifest().meta.config, "where");
  return ExportHf(reader, shape, *MakeModel(shape), out, options, progress);
}

float FiniteFloat(uint64_t bits, DType dtype) {
  // Any finite value of the dtype, subnormals and zeros of both signs as well.
  if (dtype == DType::kFloat32) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) & 0xff7fffffu);
  }
  if (dtype == DType::kBFloat16) {
    BFloat16 value;
    value.bits = static_cast<uint16_t>(bits) & 0xff7f;
    return static_cast<float>(value);
  }
  Float16 value;
  value.bits = static_cast<uint16_t>(bits) & 0xfbff;
  return static_cast<float>(value);
}

// A checkpoint of this shape with states "master" and "ema", all of whose values `dtype` holds.
std::string MakeCheckpoint(const std::string& name, const ModelShape& shape, DType dtype,
                           int shards) {
  const auto model = MakeModel(shape);
  const HfTensors tensors(*model);
  WholeCheckpoint checkpoint;
  checkpoint.meta.step = 3;
  checkpoint.meta.config = ShapeToJson(shape);
  checkpoint.layout = MakeLayout(ShapesOf(*model), WrapPolicy(), shards);
  checkpoint.world = shards;
  checkpoint.states = {"master", "ema"};
  const std::string path = FreshDirectory(name) + "/step_3";
  WriteCheckpoint(
      path, checkpoint,
      [&](const std::string& state, const Placement& p, int64_t begin, std::span<float> out) {
        const RandomStream random(7, state + "/" + p.name);
        for (size_t i = 0; i < out.size(); ++i) {
          out[i] = FiniteFloat(random.Bits(begin + static_cast<int64_t>(i)), dtype);
        }
      },
      nullptr);
  return path;
}

std::vector<float> Elements(CheckpointReader& reader, const std::string& state,
                            const std::string& name, const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(shape.NumElements()));
  reader.Read(state, name, shape, 0, values);
  return values;
}

// transformers' own file -> checkpoint -> file.
TEST(RoundTripTest, OfAFileOfTransformers) {
  for (const char* model : {"gpt2/one_head", "gpt2/odd_vocab", "gpt2/untied", "t5/relu", "t5/gated",
                            "t5/tied_gated", "vit/odd", "vit/no_bias", "vit/one_patch",
                            "vit/deep_wide", "regnet/odd", "regnet/plain", "regnet/one_stage"}) {
    const std::string from = std::string("tests/fixtures/") + model;
    const std::string dir = FreshDirectory("transformers");
    const HfImported imported = ImportHf(from, dir + "/imported", nullptr);
    EXPECT_EQ(imported.saved.path, dir + "/imported");
    const HfExported exported = Export(dir + "/imported", dir + "/exported", {}, nullptr);
    EXPECT_EQ(exported.files, 1);
    const Strings files = List(dir + "/exported");
    EXPECT_EQ(std::count(files.begin(), files.end(), "model.safetensors"), 1);
    EXPECT_EQ(std::count(files.begin(), files.end(), "config.json"), 1);
    ExpectSame(Contents(dir + "/exported"), Contents(from), model);
    EXPECT_EQ(ReadHfConfig(dir + "/exported").shape, ReadHfConfig(from).shape);
  }
}

// Every dtype that its values fit in, in one file and in many, from any F.
TEST(RoundTripTest, OfEveryDtypeAndNumberOfFiles) {
  for (const auto& [name, shape] : Shapes()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const std::string first = MakeCheckpoint("first", shape, dtype, 3);
      const std::string dir = FreshDirectory("files");
      const int64_t total = NumParameters(shape) * SizeOf(dtype);
      for (const int64_t max_bytes : {total, total / 3, int64_t{1}}) {
        const std::string what =
            name + " " + std::string(Name(dtype)) + " " + std::to_string(max_bytes);
        for (const char* sub : {"/a", "/b", "/back"}) fs::remove_all(dir + sub);
        int64_t last = 0;
        const HfExported exported =
            Export(first, dir + "/a", {dtype, max_bytes, "master"}, [&](int64_t done, int64_t of) {
              EXPECT_LT(last, done);
              EXPECT_EQ(of, total);
              last = done;
            });
        EXPECT_EQ(last, total) << what;
        EXPECT_EQ(exported.bytes, total) << what;
        const auto contents = Contents(dir + "/a");
        const auto model = MakeModel(shape);
        const HfTensors tensors(*model);
        ASSERT_EQ(contents.size(), tensors.tensors().size()) << what;  // A tied head once.
        EXPECT_EQ(exported.files, max_bytes == total ? 1
                                  : max_bytes == 1   ? static_cast<int>(contents.size())
                                                     : exported.files)
            << what;
        EXPECT_EQ(exported.files > 1, max_bytes < total);
        if (exported.files > 1) {
          const Json index = Json::parse(ReadWholeFile(dir + "/a/model.safetensors.index.json"));
          EXPECT_EQ(index["metadata"]["total_size"], total);
          EXPECT_EQ(index["weight_map"].size(), contents.size());
          for (const auto& [tensor, file] : index["weight_map"].items()) {
            EXPECT_TRUE(SafetensorsReader(dir + "/a/" + file.get<std::string>()).Contains(tensor));
          }
          char last_name[64];
          std::snprintf(last_name, sizeof(last_name), "model-%05d-of-%05d.safetensors",
                        exported.files, exported.files);
          EXPECT_TRUE(fs::exists(dir + "/a/" + last_name)) << last_name;
        }
        HfWeights(dir + "/a").RequireAll(tensors);
        for (const std::string& file : List(dir + "/a")) {
          if (!file.ends_with(".safetensors")) continue;
          EXPECT_EQ(SafetensorsReader(dir + "/a/" + file).Metadata().at("format"), "pt");
        }

        ImportHf(dir + "/a", dir + "/back", nullptr);
        CheckpointReader before(first), after(dir + "/back");
        EXPECT_EQ(after.manifest().meta.step, 0);
        EXPECT_EQ(after.manifest().meta.recipe, "");
        EXPECT_EQ(ShapeFromJson(after.manifest().meta.config, "where"), shape);
        for (const FlatParameter& unit : before.manifest().flat_parameters) {
          for (const Placement& p : unit.parameters) {
            const auto a = Elements(before, "master", p.name, p.shape);
            const auto b = Elements(after, "master", p.name, p.shape);
            EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
                << what << ": " << p.name;
          }
        }
        Export(dir + "/back", dir + "/b", {dtype, total / 2, "master"}, nullptr);
        ExpectSame(Contents(dir + "/b"), contents, what);
      }
    }
  }
}

TEST(ExportTest, WritesTheStateItIsAskedFor) {
  const auto [name, shape] = Shapes()[0];
  const std::string from = MakeCheckpoint("state", shape, DType::kFloat32, 2);
  const std::string dir = FreshDirectory("states");
  Export(from, dir + "/last", {}, nullptr);
  Export(from, dir + "/ema", {.state = "ema"}, nullptr);
  CheckpointReader reader(from);
  const HfWeights last(dir + "/last"), ema(dir + "/ema");
  const auto model = MakeModel(shape);
  const HfTensors tensors(*model);
  for (const auto& [parameter, slice, buffer, table] : tensors.tensors()) {
    std::vector<float> values(static_cast<size_t>(parameter->shape().NumElements()));
    for (const auto& [weights, state] : {std::pair(&last, "master"), std::pair(&ema, "ema")}) {
      weights->FillParameter(*parameter, 0, values);
      EXPECT_EQ(values, Elements(reader, state, parameter->name(), parameter->shape()));
    }
  }
  const std::string imported = dir + "/imported";
  ImportHf(dir + "/last", imported, nullptr);
  EXPECT_NE(ErrorOf([&] {
              Export(imported, dir + "/none", {.state = "ema"}, nullptr);
            }).find("has no state 'ema'; it has master"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(dir + "/none") || fs::exists(dir + "/none.fsdp-tmp"));
}

// Adapters are merged into the weights they belong to, and nothing of them is left.
TEST(ExportTest, MergesAdapters) {
  for (const auto& [name, shape] : Shapes()) {
    for (const char* state : {"master", "ema"}) {
      const auto base = MakeModel(shape);
      std::vector<std::string> targets = {"*attn*", "*mlp*"};
      if (shape.As<T5Config>() != nullptr) targets = {"*Attention*", "*Dense*"};
      if (name == "vit") targets = {"*attention*", "*.dense.*"};
      if (name == "deepvit") targets = {"*.to_*", "*.net.*"};
      LoraModel model(MakeModel(shape), {.rank = 3, .alpha = 5.5, .targets = targets});
      WholeCheckpoint checkpoint;
      checkpoint.meta.config = ShapeToJson(shape);
      checkpoint.layout = MakeLayout(ShapesOf(model), WrapPolicy(), 2);
      checkpoint.world = 2;
      checkpoint.states = {"master", "ema"};
      const std::string dir = FreshDirectory("lora");
      const auto value = [](const std::string& state, const std::string& parameter, int64_t i) {
        return RandomStream(11, state + parameter).Normal(static_cast<uint64_t>(i));
      };
      WriteCheckpoint(
          dir + "/step_1", checkpoint,
          [&](const std::string& s, const Placement& p, int64_t begin, std::span<float> out) {
            for (size_t i = 0; i < out.size(); ++i) {
              out[i] = value(s, p.name, begin + static_cast<int64_t>(i));
            }
          },
          nullptr);
      CheckpointReader reader(dir + "/step_1");
      ExportHf(reader, shape, model, dir + "/out", {.state = state}, nullptr);
      const HfTensors plain(*base);
      const HfWeights weights(dir + "/out");
      weights.RequireAll(plain);
      const HfTensors adapted(model);
      int merged = 0;
      for (const auto& [parameter, slice, buffer, table] : plain.tensors()) {
        std::vector<float> got(static_cast<size_t>(slice->shape.NumElements()));
        weights.Fill(slice->name, slice->shape, 0, got);
        // The same slice of the model with adapters, whose own parameters have its name.
        const std::string a_name = LoraName(slice->name, 'A'), b_name = LoraName(slice->name, 'B');
        const Parameter* const a = adapted.Find(a_name);
        const int64_t width = slice->shape.rank() == 2 ? slice->shape[1] : 1;
        merged += a != nullptr;
        for (size_t i = 0; i < got.size(); ++i) {
          const auto at = static_cast<int64_t>(i);
          double want = value("master", parameter->name(), slice->begin + at);  // Frozen: no other.
          const bool rows = model.linear_layout() == WeightLayout::kOutIn;
          const int64_t out = rows ? at / width : at % width, in = rows ? at % width : at / width;
          double sum = 0;
          for (int64_t r = 0; a != nullptr && r < 3; ++r) {
            sum += double{value(state, b_name, out * 3 + r)} *
                   double{value(state, a_name, r * a->shape()[1] + in)};
          }
          want += 5.5 / 3 * sum;
          ASSERT_EQ(got[i], static_cast<float>(want)) << slice->name << " " << i;
        }
      }
      const T5Config* const t5 = shape.As<T5Config>();
      const int of_mlp = t5 != nullptr && t5->gated_mlp ? 3 : 2;
      EXPECT_EQ(merged, t5 != nullptr                        ? 4 * 4 + 3 * of_mlp  // 3 blocks.
                        : name == "gpt2" || name == "untied" ? 2 * 4
                        : name == "vit"                      ? 2 * 6
                        : name == "deepvit"                  ? 2 * 4
                                                             : 2 * 7)
          << name;
    }
  }
}

TEST(ExportTest, RoundsToNearestAndRefusesWhatTheDtypeDoesNotHold) {
  const auto [name, shape] = Shapes()[0];
  float value = 0;
  const auto model = MakeModel(shape);
  const HfTensors tensors(*model);
  const auto make = [&](float v) {
    value = v;
    WholeCheckpoint checkpoint;
    checkpoint.meta.config = ShapeToJson(shape);
    checkpoint.layout = MakeLayout(ShapesOf(*model), WrapPolicy(), 1);
    checkpoint.states = {"master"};
    const std::string path = FreshDirectory("round") + "/step_0";
    WriteCheckpoint(
        path, checkpoint,
        [&](const std::string&, const Placement&, int64_t, std::span<float> out) {
          std::fill(out.begin(), out.end(), value);
        },
        nullptr);
    return path;
  };
  const auto exported = [&](float v, DType dtype) {
    const std::string dir = FreshDirectory("rounded");
    Export(make(v), dir + "/out", {.dtype = dtype}, nullptr);
    std::vector<float> one(1);
    HfWeights(dir + "/out")
        .Fill(tensors.tensors()[0].slice->name, tensors.tensors()[0].slice->shape, 5, one);
    return one[0];
  };
  EXPECT_EQ(exported(1 + 0x1p-8f, DType::kBFloat16), 1);  // A tie: to even.
  EXPECT_EQ(exported(1 + 0x1.8p-7f, DType::kBFloat16), 1 + 0x1p-6f);
  EXPECT_EQ(exported(1 + 0x1p-11f, DType::kFloat16), 1);
  EXPECT_EQ(exported(65519, DType::kFloat16), 65504);
  EXPECT_TRUE(std::isinf(exported(INFINITY, DType::kFloat16)));  // It was so before.
  const std::string error = ErrorOf([&] { exported(65520, DType::kFloat16); });
  EXPECT_NE(error.find("holds 65520, which is too large for the dtype"), std::string::npos)
      << error;
  EXPECT_NE(ErrorOf([&] { exported(3.4e38f, DType::kBFloat16); }).find("too large"),
            std::string::npos);
}

TEST(ExportTest, OverwritesNothingAndRefusesAForeignModel) {
  const auto [name, shape] = Shapes()[0];
  const std::string from = MakeCheckpoint("foreign", shape, DType::kFloat32, 1);
  const std::string dir = FreshDirectory("overwrite");
  fs::create_directory(dir + "/there");
  EXPECT_NE(ErrorOf([&] { Export(from, dir + "/there", {}, nullptr); }).find("is there already"),
            std::string::npos);
  EXPECT_TRUE(List(dir + "/there").empty());
  const auto with_config = [&](const std::string& config) {
    CheckpointReader reader(from);
    const Manifest& m = reader.manifest();
    WholeCheckpoint other{m.meta, Relayout(m.flat_parameters, 1), 1, {"master"}};
    other.meta.config = config;
    const std::string path = FreshDirectory("other") + "/step_0";
    WriteCheckpoint(
        path, other, [&](const std::string&, const Placement&, int64_t, std::span<float>) {},
        nullptr);
    return ErrorOf([&] { Export(path, dir + "/out", {}, nullptr); });
  };
  Gpt2Config one = *shape.As<Gpt2Config>();
  one.num_hidden_layers = 1;
  EXPECT_NE(with_config(ShapeToJson(one)).find("which a model of its shape does not have"),
            std::string::npos);
  one.num_hidden_layers = 3;
  EXPECT_NE(with_config(ShapeToJson(one)).find("has no parameter 'transformer.h.2."),
            std::string::npos);
  EXPECT_NE(with_config("{}").find("has no family"), std::string::npos);
  EXPECT_EQ(List(dir), (Strings{"there"}));
}

// Ids that the model does not know would be refused by transformers' embedding, or never come.
TEST(ExportTest, WritesTheTokenizersFilesAndIds) {
  const auto [name, shape] = Shapes()[0];
  const std::string from = MakeCheckpoint("tokenizer", shape, DType::kFloat32, 1);
  const std::string dir = FreshDirectory("with_tokenizer");
  HfExportOptions options;
  options.tokenizer.contents["tokenizer.json"] = "{}";
  options.tokenizer.ids = {.bos = 1, .eos = 2, .pad = static_cast<int32_t>(VocabSize(shape))};
  Export(from, dir + "/out", options, nullptr);
  EXPECT_EQ(ReadWholeFile(dir + "/out/tokenizer.json"), "{}");
  const Json config = Json::parse(ReadWholeFile(dir + "/out/config.json"));
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], 2);
  EXPECT_TRUE(config["pad_token_id"].is_null());
  EXPECT_EQ(Json::parse(ReadWholeFile(dir + "/out/generation_config.json"))["pad_token_id"], 2);
  EXPECT_EQ(ReadHfEos(dir + "/out"), (std::vector<int32_t>{2}));
}

TEST(ImportTest, RefusesWhatItWouldLeaveOut) {
  const std::string dir = FreshDirectory("more");
  const std::string config = ReadWholeFile("tests/fixtures/gpt2/one_head/config.json");
  Json json = Json::parse(config);
  fs::copy_file("tests/fixtures/gpt2/one_head/model.safetensors", dir + "/model.safetensors");
  const auto import = [&] {
    std::ofstream(dir + "/config.json") << json.dump();
    return ErrorOf([&] { ImportHf(dir, dir + "/out", nullptr); });
  };
  json["n_layer"] = 2;
  EXPECT_NE(import().find("has no parameter 'transformer.h.1."), std::string::npos);
  json["n_layer"] = 1;
  json["n_inner"] = 95;
  EXPECT_NE(import().find("has shape [64, 96], want [64, 95]"), std::string::npos);
  json["n_inner"] = 96;
  json["scale_attn_weights"] = false;
  EXPECT_NE(import().find("scale_attn_weights: false"), std::string::npos);
  EXPECT_FALSE(fs::exists(dir + "/out"));
  json["scale_attn_weights"] = true;
  EXPECT_EQ(import(), "");
}

TEST(ImportTest, NamesWhatIsNotFinite) {
  const std::string from = "tests/fixtures/gpt2/one_head", dir = FreshDirectory("not_finite");
  fs::copy_file(from + "/config.json", dir + "/config.json");
  const std::string name = "transformer.h.0.attn.c_proj.weight";
  const auto begin = SafetensorsReader(from + "/model.safetensors").Info(name).begin;
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    std::string bytes = ReadWholeFile(from + "/model.safetensors");
    std::memcpy(bytes.data() + begin + 17 * sizeof(float), &value, sizeof(value));
    std::ofstream(dir + "/model.safetensors", std::ios::binary) << bytes;
    const std::string error = ErrorOf([&] { ImportHf(dir, dir + "/out", nullptr); });
    EXPECT_NE(error.find(dir + ": " + name + ": element 17 is " +
                         (std::isnan(value) ? "nan"
                          : value > 0       ? "inf"
                                            : "-inf")),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("--allow-nonfinite"), std::string::npos) << error;
    EXPECT_EQ(List(dir), (Strings{"config.json", "model.safetensors"}));
  }
  ImportHf(dir, dir + "/out", nullptr, /*allow_nonfinite=*/true);
  CheckpointReader reader(dir + "/out");
  std::vector<float> values(18);
  reader.Read("master", name, Shape{64, 64}, 0, values);
  EXPECT_EQ(values[17], -INFINITY);
}

}  // namespace
}  // namespace fsdp
