// Directories in bitsandbytes' four bits, which bitsandbytes and transformers wrote, in and out.
#include "trainer/weights/bnb_tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>

#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/nn/model.h"
#include "trainer/ops/weight_codes.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_export.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ErrorOf;
using testing::FreshDirectory;
using testing::Json;

const std::string kFixtures = "tests/fixtures/bitsandbytes/", kLayer = "model.layers.0.",
                  kDown = kLayer + "mlp.down_proj.weight", kQ = kLayer + "self_attn.q_proj.weight";
constexpr auto kNested = WeightCode::kNf4Nested;

struct Tensor {
  SafetensorsType type;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  bool operator==(const Tensor&) const = default;
};
using Tensors = std::map<std::string, Tensor>;

// Those of all files that begin with "model".
Tensors Contents(const std::string& directory) {
  Tensors tensors;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    const SafetensorsReader file(entry.path());
    for (const std::string& tensor : file.Names()) {
      const SafetensorsInfo& info = file.Info(tensor);
      Tensor& t = tensors[tensor];
      t = {info.type, info.shape, std::vector<std::byte>(static_cast<size_t>(info.bytes()))};
      file.ReadBytes(tensor, 0, t.bytes);
    }
  }
  return tensors;
}

void Save(const std::string& path, const Tensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.type, tensor.shape});
  SafetensorsWriter writer(path, entries);
  for (const auto& [name, tensor] : tensors) writer.WriteBytes(name, 0, tensor.bytes);
  writer.Finish();
}

// The parts of a coded weight whose records have this byte everywhere.
Tensors Coded(const std::string& name, const std::vector<int64_t>& shape, WeightCode code,
              uint8_t byte) {
  const std::string directory = FreshDirectory("coded");
  const auto fill = [=](int64_t, std::span<uint8_t> records) {
    std::fill(records.begin(), records.end(), byte);
  };
  const BnbParts parts(name, shape, "float32", {code, fill});
  SafetensorsWriter writer(directory + "/model.safetensors", parts.entries());
  parts.Write(writer, [](int64_t) {});
  writer.Finish();
  return Contents(directory);
}

std::vector<float> Read(const HfWeights& weights, const std::string& name, const Shape& shape,
                        int64_t begin, int64_t piece) {
  std::vector<float> values(static_cast<size_t>(shape.NumElements() - begin));
  for (int64_t at = 0; at < std::ssize(values); at += piece) {
    const auto count = static_cast<size_t>(std::min(piece, std::ssize(values) - at));
    weights.Fill(name, shape, begin + at, std::span(values).subspan(at, count));
  }
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Shape ShapeOf(const std::vector<int64_t>& dims) { return {dims.at(0), dims.at(1)}; }

std::vector<uint8_t> Records(const HfWeights& weights, const std::string& name, int64_t elements) {
  const auto bytes = static_cast<size_t>(CodedBytes(weights.CodeOf(name), elements));
  std::vector<uint8_t> records(bytes, 0xee);
  weights.ReadRecords(name, 0, records);
  return records;
}

class BnbDirectory : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string directory_ = kFixtures + GetParam();
  const SafetensorsReader decoded_{directory_ + "/decoded.safetensors"};
  const HfWeights weights_{directory_};
};

TEST_P(BnbDirectory, IsReadAsBitsandbytesDecodesIt) {
  for (const std::string& name : decoded_.Names()) {
    const SafetensorsInfo& info = decoded_.Info(name);
    const Shape shape = ShapeOf(info.shape);
    std::vector<float> want(static_cast<size_t>(info.NumElements()));
    decoded_.ReadFloat(name, 0, want);
    EXPECT_TRUE(SameBits(Read(weights_, name, shape, 0, 1 << 20), want)) << name;
    EXPECT_TRUE(SameBits(Read(weights_, name, shape, 0, 37), want)) << name;
    want.erase(want.begin(), want.begin() + 101);  // Pieces meet inside records and bytes.
    EXPECT_TRUE(SameBits(Read(weights_, name, shape, 101, 5000), want)) << name;
    std::vector<float> two(2);
    EXPECT_THROW(weights_.Fill(name, shape, shape.NumElements() - 1, two), std::invalid_argument);
    EXPECT_THROW(weights_.Fill(name, shape, -1, two), std::invalid_argument);
    EXPECT_NE(ErrorOf([&] {
                weights_.Fill(name, Shape{3, 5}, 0, two);
              }).find("want [3, 5]"),
              std::string::npos);
  }
}

TEST_P(BnbDirectory, HasCodesAsTheyAreInTheFile) {
  Tensors file = Contents(directory_);
  for (const std::string& name : decoded_.Names()) {
    const WeightCode code = weights_.CodeOf(name);
    EXPECT_EQ(code, std::string(GetParam()) == "double" ? kNested : WeightCode::kNf4);
    const int64_t elements = decoded_.Info(name).NumElements(), record = RecordBytes(code),
                  count = (elements + kWeightRecord - 1) / kWeightRecord;
    const std::vector<uint8_t> all = Records(weights_, name, elements);
    std::vector<float> values(static_cast<size_t>(elements));
    DecodeRecords(code, all.data(), values);
    EXPECT_TRUE(SameBits(values, Read(weights_, name, ShapeOf(decoded_.Info(name).shape), 0, 999)));
    const auto expect_same = [&](int64_t at, const std::string& part, int64_t begin, int64_t most) {
      const std::vector<std::byte>& want = file.at(name + part).bytes;
      const auto bytes = static_cast<size_t>(std::min(std::ssize(want) - begin, most));
      EXPECT_EQ(std::memcmp(&all[at], &want[begin], bytes), 0) << name + part;
    };
    for (int64_t r = 0; r < count; ++r) {
      const int64_t codes = kWeightRecord / 2, scales = code == kNested ? 256 : 1024;
      expect_same(r * record, "", r * codes, codes);
      expect_same(r * record + codes, ".absmax", r * scales, scales);
      if (code == kNested) expect_same(r * record + codes + scales, ".nested_absmax", r * 4, 4);
      std::vector<uint8_t> one(record);
      weights_.ReadRecords(name, r, one);
      EXPECT_EQ(std::memcmp(one.data(), &all[r * record], record), 0) << name;
    }
    std::vector<uint8_t> wrong(record);
    EXPECT_THROW(weights_.ReadRecords(name, count, wrong), std::invalid_argument);
    EXPECT_THROW(weights_.ReadRecords(name, -1, wrong), std::invalid_argument);
    wrong.pop_back();
    EXPECT_THROW(weights_.ReadRecords(name, 0, wrong), std::invalid_argument);
  }
  EXPECT_EQ(weights_.CodeOf("lm_head.weight"), WeightCode::kNone);
  EXPECT_EQ(weights_.CodeOf("model.norm.weight"), WeightCode::kNone);
  EXPECT_EQ(ErrorOf([&] { weights_.CodeOf("x"); }), directory_ + ": has no parameter 'x'");
  EXPECT_FALSE(weights_.Holds(kQ + ".absmax"));  // It is no tensor.
}

// Padding, too: a weight of a file has the codes that its values would have here.
TEST(BnbTensorTest, CodesOfDecodedValuesAreTheFiles) {
  const std::string directory = kFixtures + "single";
  const HfWeights weights(directory);
  const SafetensorsReader decoded(directory + "/decoded.safetensors");
  for (const std::string& name : decoded.Names()) {
    std::vector<float> values(static_cast<size_t>(decoded.Info(name).NumElements()));
    decoded.ReadFloat(name, 0, values);
    std::vector<uint8_t> want(
        static_cast<size_t>(CodedBytes(WeightCode::kNf4, std::ssize(values))));
    EncodeRecords(WeightCode::kNf4, values, want.data(), {});
    EXPECT_EQ(Records(weights, name, std::ssize(values)), want) << name;
  }
}

// All weights of the model by tensor.
std::map<std::string, std::vector<float>> Values(const WeightSource& source, const Model& model) {
  std::map<std::string, std::vector<float>> all;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      for (const ParameterSlice& slice : p->slices()) {
        all[slice.name].resize(static_cast<size_t>(slice.shape.NumElements()));
        source.parameters(*p, slice.begin, all[slice.name]);
      }
    }
  }
  return all;
}

TEST_P(BnbDirectory, BeginsARunOrAnImport) {
  const auto model = MakeModel(ReadInitialShape(directory_));
  const auto values = Values(OpenInitialWeights(directory_), *model);
  for (const std::string& name : decoded_.Names()) {
    std::vector<float> want(values.at(name).size());
    decoded_.ReadFloat(name, 0, want);
    EXPECT_TRUE(SameBits(values.at(name), want)) << name;
  }
  EXPECT_EQ(InitialNotes(directory_),
            std::vector<std::string>{"weights of linear layers come in bitsandbytes' four bits, "
                                     "and are what these decode to"});
  const std::string imported = testing::UnusedPath("imported");
  EXPECT_EQ(ImportHf(directory_, imported, nullptr).ignored, IgnoredKeys(directory_));
  EXPECT_EQ(Values(OpenInitialWeights(imported), *model), values);
}

struct Written {
  std::string directory;
  HfExported exported;
};

// A copy by way of records.
Written Export(const std::string& from, DType dtype, int64_t max_shard_bytes) {
  const auto weights = std::make_shared<HfWeights>(from);
  const ModelShape shape = ReadInitialShape(from);
  const auto model = MakeModel(shape);
  CodedTensors coded;
  const HfTensors tensors(*model);
  for (const HfTensors::Tensor& tensor : tensors.tensors()) {
    const WeightCode code = weights->CodeOf(tensor.name());
    if (code == WeightCode::kNone) continue;
    coded[tensor.name()] = {
        code, [weights, name = tensor.name()](int64_t first, std::span<uint8_t> records) {
          weights->ReadRecords(name, first, records);
        }};
  }
  HfExportOptions options;
  options.dtype = dtype;
  options.max_shard_bytes = max_shard_bytes;
  const std::string out = testing::UnusedPath("written_" + fs::path(from).filename().string());
  int64_t done = 0;
  const HfExported exported = ExportBnb(OpenInitialWeights(from), coded, shape, *model, out,
                                        options, [&](int64_t bytes, int64_t) { done = bytes; });
  EXPECT_EQ(done, exported.bytes);
  return {out, exported};
}

// tools/reference/bnb_directory.py --compare has shown that transformers reads both as one model.
TEST_P(BnbDirectory, IsWrittenAsTransformersDoes) {
  const DType dtype = std::string(GetParam()) == "double" ? DType::kBFloat16 : DType::kFloat16;
  const Tensors want = Contents(directory_);
  for (const int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{5000}}) {
    const Written written = Export(directory_, dtype, max_shard_bytes);
    const Tensors got = Contents(written.directory);
    int64_t bytes = 0;
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, tensor] : want) {
      EXPECT_TRUE(got.contains(name) && got.at(name) == tensor) << name;
      bytes += std::ssize(tensor.bytes);
    }
    EXPECT_EQ(written.exported.bytes, bytes);
    EXPECT_EQ(written.exported.files > 1, max_shard_bytes == 5000);
    const auto model = MakeModel(ReadInitialShape(written.directory));
    EXPECT_EQ(Values(OpenInitialWeights(written.directory), *model),
              Values(OpenInitialWeights(directory_), *model));
    const auto config = [](const std::string& path) {
      return Json::parse(ReadWholeFile(path + "/config.json")).at("quantization_config");
    };
    Json wanted = config(directory_);
    wanted["llm_int8_skip_modules"] = {"lm_head", "model.embed_tokens"};
    if (dtype == DType::kFloat16) {
      wanted["llm_int8_skip_modules"].push_back(kLayer + "mlp.down_proj");
    }
    EXPECT_EQ(config(written.directory), wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BnbDirectory, ::testing::Values("double", "single"),
                         [](const auto& info) { return std::string(info.param); });

TEST(BnbExport, RefusesWhatBitsandbytesDoesNotRead) {
  const auto error = [](const std::string& from, const std::string& name,
                        const CodedTensor& coded) {
    const ModelShape shape = ReadInitialShape(from);
    const auto model = MakeModel(shape);
    return ErrorOf<std::exception>([&] {
      ExportBnb(OpenInitialWeights(from), {{name, coded}}, shape, *model,
                testing::UnusedPath("refused"), {}, nullptr);
    });
  };
  const std::string from = kFixtures + "double";
  const auto fill = [](int64_t first, std::span<uint8_t> records) {
    std::fill(records.begin(), records.end(), 0);
    if (first == 0) records[RecordBytes(kNested) - 12] = 1;  // In the lowest byte of the mean.
  };
  EXPECT_EQ(error(from, kQ, {WeightCode::kInt8, fill}),
            "'" + kQ + "' is not in nf4, which bitsandbytes reads");
  EXPECT_EQ(error(from, kQ, {kNested, fill}),
            "'" + kQ + "': record 1 has another mean of scales than the first");
  EXPECT_EQ(error(from, "x", {kNested, fill}),
            "coded tensors that the model does not have, or none");
  const auto infinite = [](int64_t, std::span<uint8_t> records) {
    std::fill(records.begin(), records.end(), 0xff);
  };
  EXPECT_EQ(error(from, kQ, {kNested, infinite}),
            "'" + kQ + "': its scales are not finite: no file has these");
  EXPECT_NE(error("tests/fixtures/gpt2/one_head", "transformer.h.0.mlp.c_fc.weight",
                  {WeightCode::kNf4, fill})
                .find("GPT-2's matrices lie the other way"),
            std::string::npos);
  const std::string wo = "encoder.block.0.layer.1.DenseReluDense.wo.weight";
  EXPECT_EQ(error("tests/fixtures/t5/gated", wo, {WeightCode::kNf4, fill}),
            wo + " is in four bits, and transformers reads it in none: export it without --base "
                 "nf4, or train with `*.wo.weight` in model.lora.base_exclude");
}

// quant_state is text, which Python's json wrote.
TEST(BnbExport, WritesNumbersAsPython) {
  for (const auto& [mean, want] :
       std::vector<std::pair<float, std::string>>{{0, "0.0"},
                                                  {1, "1.0"},
                                                  {0.0625f, "0.0625"},
                                                  {0.1f, "0.10000000149011612"},
                                                  {1e-4f, "9.999999747378752e-05"},
                                                  {1.0001e-4f, "0.00010001000191550702"},
                                                  {5e-5f, "4.999999873689376e-05"},
                                                  {1e9f, "1000000000.0"},
                                                  {1e15f, "999999986991104.0"},
                                                  {1e16f, "1.0000000272564224e+16"}}) {
    const std::string directory = FreshDirectory("number");
    const auto fill = [mean = mean](int64_t, std::span<uint8_t> records) {
      std::memcpy(&records[RecordBytes(kNested) - 12], &mean, sizeof(mean));
    };
    const BnbParts parts("w", {3, 5}, "float16", {kNested, fill});
    SafetensorsWriter writer(directory + "/model.safetensors", parts.entries());
    parts.Write(writer, [](int64_t) {});
    writer.Finish();
    const auto bytes = Contents(directory).at("w.quant_state.bitsandbytes__nf4").bytes;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
              R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [3, 5], )"
              R"("nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": )" +
                  want + "}");
  }
}

using Change = std::function<void(Tensors&)>;

// The words that refuse a copy of `fixture` with other tensors, without its path.
std::string Refusal(const std::string& fixture, const Change& change) {
  const std::string directory = FreshDirectory("refused");
  fs::copy_file(kFixtures + fixture + "/config.json", directory + "/config.json");
  Tensors tensors = Contents(kFixtures + fixture);
  change(tensors);
  Save(directory + "/model.safetensors", tensors);
  const std::string words = ErrorOf([&] { OpenInitialWeights(directory); }, "none");
  const std::string path = directory + "/model.safetensors: ";
  return words.starts_with(path) ? words.substr(path.size()) : words;
}

// Changes q's quant_state: a text in it, of which there is one.
Change State(const std::string& from, const std::string& to) {
  return [=](Tensors& tensors) {
    Tensor& state = tensors.at(kQ + ".quant_state.bitsandbytes__nf4");
    std::string text(reinterpret_cast<const char*>(state.bytes.data()), state.bytes.size());
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    const auto bytes = std::as_bytes(std::span(text));
    state.bytes.assign(bytes.begin(), bytes.end());
    state.shape = {std::ssize(text)};
  };
}

Change Rename(const std::string& from, const std::string& to) {
  return [=](Tensors& tensors) {
    auto node = tensors.extract(from);
    ASSERT_FALSE(node.empty());
    node.key() = to;
    tensors.insert(std::move(node));
  };
}

Change Remove(const std::string& name) {
  return [=](Tensors& tensors) { ASSERT_EQ(tensors.erase(name), 1U) << name; };
}

// One element shorter.
Change Shorten(const std::string& name) {
  return [=](Tensors& tensors) {
    Tensor& t = tensors.at(name);
    --t.shape[0];
    t.bytes.resize(t.bytes.size() - static_cast<size_t>(SizeOf(t.type)));
  };
}

// One number of a map, `by` times as large.
Change Scale(const std::string& name, int index, float by) {
  return [=](Tensors& tensors) {
    std::byte* const at = &tensors.at(name).bytes[index * sizeof(float)];
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    value *= by;
    std::memcpy(at, &value, sizeof(value));
  };
}

TEST(BnbTensorTest, RefusesOtherForms) {
  const std::string form =
      ", and this version reads bitsandbytes' nf4 with blocks of 64, stored as uint8: begin from "
      "the weights before they were quantised, or quantise those so";
  const auto is_form = [&](const std::string& words, const Change& change,
                           const std::string& fixture = "double") {
    EXPECT_EQ(Refusal(fixture, change), "'" + kQ + "' " + words + form);
  };
  const std::string nf4 = ".quant_state.bitsandbytes__nf4", fp4 = ".quant_state.bitsandbytes__fp4";
  is_form("is in bitsandbytes' fp4", Rename(kQ + nf4, kQ + fp4));
  is_form("has the quant_type \"fp4\"", State("\"nf4\"", "\"fp4\""));
  is_form("has a blocksize of 128", State("\"blocksize\": 64", "\"blocksize\": 128"), "single");
  is_form("has a nested_blocksize of 128", State("size\": 256", "size\": 128"));
  is_form("has its codes as BF16", [](Tensors& tensors) {
    Tensor& q = tensors.at(kQ);
    q.type = SafetensorsType::kBF16;
    q.shape[0] /= 2;
  });
  is_form("has a quant_map that is not nf4's", Scale(kQ + ".quant_map", 3, 1.001f));
  is_form("has a nested_quant_map that is not bitsandbytes' dynamic map",
          Scale(kQ + ".nested_quant_map", 126, 2));  // -5.5e-7.
  // Another PyTorch's linspace.
  EXPECT_EQ(Refusal("double", Scale(kQ + ".nested_quant_map", 200, 1 + 1.2e-7f)), "none");
  EXPECT_EQ(Refusal("single",
                    [](Tensors& tensors) {
                      tensors[kLayer + "mlp.down_proj.SCB"] = {
                          SafetensorsType::kF32, {1}, std::vector<std::byte>(4)};
                    }),
            "holds '" + kLayer +
                "mlp.down_proj.SCB', a scale of bitsandbytes' eight bits (load_in_8bit), which "
                "this version does not read: begin from the weights before they were quantised, or "
                "quantise those with nf4 (load_in_4bit)");
}

TEST(BnbTensorTest, RequiresAllPartsWithTheirSizes) {
  const std::string is_coded = "'" + kQ + "' is in bitsandbytes' four bits";
  for (const std::string end : {"", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
                                ".quant_state.bitsandbytes__nf4"}) {
    EXPECT_EQ(Refusal("double", Remove(kQ + end)),
              is_coded + " and lacks '" + kQ + end + "': the directory is incomplete");
  }
  for (const auto& [end, is] : std::vector<std::pair<std::string, std::string>>{
           {"", "U8 [8329, 1], want U8 [8330, 1]"},
           {".absmax", "U8 [260], want U8 [261]"},
           {".quant_map", "F32 [15], want F32 [16]"},
           {".nested_absmax", "F32 [1], want F32 [2]"},
           {".nested_quant_map", "F32 [255], want F32 [256]"}}) {
    EXPECT_EQ(Refusal("double", Shorten(kQ + end)), is_coded + ", and '" + kQ + end + "' is " + is);
  }
  EXPECT_EQ(Refusal("single", Shorten(kQ + ".absmax")),
            is_coded + ", and '" + kQ + ".absmax' is F32 [8], want F32 [9]");
  EXPECT_EQ(Refusal("single", State("}", R"(, "nested_offset": 1})")),
            is_coded + ", and '" + kQ + ".absmax' is F32 [9], want U8 [9]");
}

TEST(BnbTensorTest, RefusesAStateThatIsNone) {
  const std::string state = "'" + kQ + ".quant_state.bitsandbytes__nf4'";
  for (const auto& [from, to, want] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"{\"quant", "[\"quant", ":1:14: want"},
           {"\"blocksize\"", "\"size\"", ": has no blocksize"},
           {": 64", ": 64.5", ": blocksize: 64.5 want an integer"},
           {"[476, 35]", "null", ": shape: is not a list"},
           {"[476, 35]", "[476, 0]", ": shape[1]: 0 want an integer from 1"},
           {"[476, 35]", "[1152921504606846976, 35]", ": shape[1]: 35 want an integer from 1 to 1"},
           {"\"float32\"", "\"float16\"", ": nested_dtype: \"float16\" is not \"float32\""},
           {"\"nested_offset\": 0.", "\"nested_offset\": [0], \"x\": 0.",
            ": nested_offset: a list is not a number"},
           {"\"nested_offset\": 0.", "\"nested_offset\": 1e300, \"x\": 0.",
            ": nested_offset: is too large for fp32"}}) {
    const std::string words = Refusal("double", State(from, to));
    EXPECT_EQ(words.substr(0, (state + want).size()), state + want);
  }
  EXPECT_NE(Refusal("double", State("[476, 35]", "[35, 476]"))
                .find("parameter '" + kQ + "' has shape [35, 476], want [476, 35]"),
            std::string::npos);
  EXPECT_EQ(Refusal("double",
                    [](Tensors& tensors) {
                      Tensor& t = tensors.at(kQ + ".quant_state.bitsandbytes__nf4");
                      t.type = SafetensorsType::kI8;
                    }),
            "'" + kQ + "' has a quant_state of I8 [168], want bytes of JSON");
}

// transformers codes the transpose of a Conv1D, which is square or not.
TEST(BnbTensorTest, RefusesGpt2s) {
  for (const auto& [part, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"attn.c_proj", {64, 64}}, {"attn.c_attn", {192, 64}}}) {
    const std::string gpt2 = "tests/fixtures/gpt2/one_head", directory = FreshDirectory("gpt2"),
                      name = "transformer.h.0." + part + ".weight";
    fs::copy_file(gpt2 + "/config.json", directory + "/config.json");
    Tensors tensors = Contents(gpt2);
    tensors.erase(name);
    tensors.merge(Coded(name, shape, WeightCode::kNf4, 0));
    Save(directory + "/model.safetensors", tensors);
    EXPECT_EQ(ErrorOf([&] { OpenInitialWeights(directory); }),
              directory + "/model.safetensors: '" + name +
                  "' is in bitsandbytes' four bits, coded by transformers with rows and columns "
                  "exchanged, which this version does not read of this family (GPT-2): begin from "
                  "the weights before they were quantised");
  }
}

// The parts of a weight may lie in several files, and two of one weight's records in one.
TEST(BnbTensorTest, PartsMayLieInSeveralFiles) {
  const std::string directory = FreshDirectory("several");
  fs::copy_file(kFixtures + "double/config.json", directory + "/config.json");
  Tensors all = Contents(kFixtures + "double"), scales;
  Json index;
  for (const auto& [name, tensor] : all) {
    const bool is_scale = name.ends_with("absmax") || name.ends_with("map");
    if (is_scale) scales[name] = tensor;
    index["weight_map"][name] = is_scale ? "b.safetensors" : "a.safetensors";
  }
  std::erase_if(all, [&](const auto& entry) { return scales.contains(entry.first); });
  Save(directory + "/a.safetensors", all);
  Save(directory + "/b.safetensors", scales);
  std::ofstream(directory + "/model.safetensors.index.json") << index;
  const auto model = MakeModel(ReadInitialShape(directory));
  EXPECT_EQ(Values(OpenInitialWeights(directory), *model),
            Values(OpenInitialWeights(kFixtures + "double"), *model));
}

TEST(BnbTensorTest, ComparesCodedTensorsAsNumbers) {
  const std::string directory = FreshDirectory("equal");
  Tensors tensors = Coded("a.weight", {300, 100}, WeightCode::kNf4, 0x3c);
  tensors.merge(Coded("b.weight", {300, 100}, WeightCode::kNf4, 0x3c));
  tensors.merge(Coded("c.weight", {300, 100}, WeightCode::kNf4, 0x3d));
  Save(directory + "/model.safetensors", tensors);
  const HfWeights weights(directory);
  EXPECT_TRUE(weights.AreEqual("a.weight", "b.weight"));
  EXPECT_FALSE(weights.AreEqual("a.weight", "c.weight"));
}

}  // namespace
}  // namespace fsdp
