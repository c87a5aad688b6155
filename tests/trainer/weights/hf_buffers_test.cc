// A model's buffers out of a checkpoint, into a Hugging Face directory, and back.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/gpt2/config.h"
#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/toy_graph.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/checkpoint/verify.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/weights/hf_export.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"
#include "trainer/weights/merged_weights.h"

namespace fsdp {
namespace {

using testing::ErrorOf;
using testing::FreshDirectory;
using testing::ToyGraph;

constexpr const char *kMean = "stem.running_mean", *kCount = "stem.num_batches_tracked";
constexpr int64_t kBatches = (int64_t{1} << 40) + 3;  // More than a float holds.

float MeanAt(int64_t i) { return 0.1f * static_cast<float>(i) - 0.3f; }

OwnTensor Described(const ModelBuffer& buffer) {
  return {buffer.name(), "", buffer.dtype(), buffer.shape()};
}

// A ToyGraph's checkpoint, with these buffers, by two ranks.
std::string MakeCheckpoint(const std::string& name, const std::vector<OwnTensor>& buffers) {
  WholeCheckpoint checkpoint;
  checkpoint.layout = MakeLayout(ShapesOf(ToyGraph()), WrapPolicy(), /*shards=*/1);
  checkpoint.states = {"master"};
  checkpoint.buffers = buffers;
  const std::string directory = FreshDirectory(name);
  WriteCheckpoint(
      directory + "/whole", checkpoint,
      [](const std::string&, const Placement&, int64_t begin, std::span<float> out) {
        for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(begin) + 0.5f;
      },
      nullptr,
      [](const OwnTensor& buffer, int64_t begin, const View& out) {
        for (int64_t i = 0; i < out.NumElements(); ++i) {
          if (buffer.dtype == DType::kInt64) {
            out.As<int64_t>()[i] = kBatches;
          } else {
            out.As<float>()[i] = MeanAt(begin + i);
          }
        }
      });
  ReshardCheckpoint(directory + "/whole", 2, 2, directory + "/two", nullptr);
  return directory + "/two";
}

std::vector<OwnTensor> All() {
  const ToyGraph model;
  std::vector<OwnTensor> all;
  for (const ModelBuffer* buffer : BuffersOf(model)) all.push_back(Described(*buffer));
  return all;
}

TEST(HfBuffersTest, GoBothWays) {
  const std::string from = MakeCheckpoint("both", All()), out = from + "_hf";
  EXPECT_TRUE(VerifyCheckpoint(CheckpointHold(from), nullptr).damages.empty());
  const ToyGraph model;
  CheckpointReader reader(from);
  ExportHf(reader, ModelShape(Gpt2Config{}), model, out, {.dtype = DType::kBFloat16}, nullptr);
  const SafetensorsReader file(out + "/model.safetensors");
  EXPECT_EQ(file.Info("classes").type, SafetensorsType::kBF16);
  EXPECT_EQ(file.Info(kMean).type, SafetensorsType::kF32);  // Whatever the weights are in.
  EXPECT_EQ(file.Info(kCount).type, SafetensorsType::kI64);
  EXPECT_TRUE(file.Info(kCount).shape.empty());

  const HfWeights weights(out);
  weights.RequireAll(HfTensors(model));
  for (const ModelBuffer* buffer : BuffersOf(model)) {
    const int64_t n = buffer->shape().NumElements(), begin = n / 2;
    std::vector<int64_t> memory(static_cast<size_t>(n));
    const View values(reinterpret_cast<std::byte*>(memory.data()), buffer->dtype(),
                      Shape{n - begin});
    weights.FillBuffer(*buffer, begin, values);
    for (int64_t i = 0; i < n - begin; ++i) {
      if (buffer->dtype() == DType::kInt64) {
        EXPECT_EQ(values.As<int64_t>()[i], kBatches);
      } else {
        EXPECT_EQ(values.As<float>()[i], MeanAt(begin + i)) << buffer->name();
      }
    }
  }
}

TEST(HfBuffersTest, ACheckpointHasThoseOfTheModel) {
  const ToyGraph model;
  const auto error = [&](const std::string& name, const std::vector<OwnTensor>& buffers) {
    CheckpointReader reader(MakeCheckpoint(name, buffers));
    return ErrorOf([&] { MergedWeights(reader, model, "master"); });
  };
  EXPECT_EQ(error("all", All()), "");
  EXPECT_NE(error("none", {}).find("has no state 'buffers'"), std::string::npos);
  std::vector<OwnTensor> some = All();
  some.pop_back();
  EXPECT_NE(error("some", some).find("h.2.running_mean"), std::string::npos);
  std::vector<OwnTensor> more = All();
  more.push_back({"other", "", DType::kFloat32, Shape{2}});
  EXPECT_NE(error("more", more).find("holds buffer 'other', which a model of its shape does not"),
            std::string::npos);
  std::vector<OwnTensor> wide = All();
  wide[0].shape = Shape{16};
  EXPECT_NE(error("wide", wide).find(kMean), std::string::npos);
}

TEST(HfBuffersTest, ADirectoryHasThoseOfTheModel) {
  const ToyGraph model;
  // Every tensor but for what `change` does to the entries.
  const auto error = [&](const std::function<void(std::vector<SafetensorsEntry>&)>& change) {
    const std::string directory = FreshDirectory("directory");
    std::vector<SafetensorsEntry> entries;
    const HfTensors tensors(model);
    for (const HfTensors::Tensor& tensor : tensors.tensors()) {
      SafetensorsEntry& entry = entries.emplace_back();
      entry = {tensor.name(), ToSafetensorsType(tensor.dtype(DType::kFloat32)), {}};
      for (int i = 0; i < tensor.shape().rank(); ++i) entry.shape.push_back(tensor.shape()[i]);
    }
    change(entries);
    SafetensorsWriter writer(directory + "/model.safetensors", entries);
    for (const SafetensorsEntry& entry : entries) {
      int64_t bytes = SizeOf(entry.type);
      for (const int64_t dim : entry.shape) bytes *= dim;
      writer.WriteBytes(entry.name, 0, std::vector<std::byte>(static_cast<size_t>(bytes)));
    }
    writer.Finish();
    return ErrorOf([&] { HfWeights(directory).RequireAll(tensors); });
  };
  const auto entry = [](std::vector<SafetensorsEntry>& entries, const std::string& name) {
    return std::find_if(entries.begin(), entries.end(),
                        [&](const SafetensorsEntry& e) { return e.name == name; });
  };
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_EQ(error([&](auto& all) { entry(all, kMean)->type = SafetensorsType::kBF16; }), "");
  EXPECT_NE(error([&](auto& all) { all.erase(entry(all, kCount)); }).find(kCount),
            std::string::npos);
  EXPECT_NE(error([&](auto& all) {
              entry(all, kCount)->type = SafetensorsType::kF32;
            }).find("buffer 'stem.num_batches_tracked' is F32, want I64"),
            std::string::npos);
  EXPECT_NE(error([&](auto& all) { entry(all, kMean)->type = SafetensorsType::kI64; }).find("I64"),
            std::string::npos);
  EXPECT_NE(error([&](auto& all) {
              entry(all, kMean)->shape = {5, 3};
            }).find("has shape [5, 3]"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp
