#include "trainer/weights/hf_export.h"

#include <cstdio>
#include <optional>
#include <vector>

#include "models/shape.h"
#include "trainer/checkpoint/new_directory.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/check.h"
#include "trainer/core/json_tree.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensor_file.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/merged_weights.h"

namespace fsdp {
namespace {

using Tensors = std::vector<HfTensors::Tensor>;

// As torch calls it.
std::string_view TorchName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    default:
      FSDP_CHECK(false) << "weights in " << Name(dtype);
  }
}

// Whole tensors in order, as many as fit a file, at least one.
std::vector<Tensors> Shards(const Tensors& tensors, DType dtype, int64_t max_bytes) {
  std::vector<Tensors> shards;
  int64_t filled = 0;
  for (const HfTensors::Tensor& tensor : tensors) {
    const int64_t bytes = tensor.bytes(dtype);
    if (shards.empty() || (filled > 0 && bytes > max_bytes - filled)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += bytes;
  }
  return shards;
}

std::string ShardName(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

}  // namespace

HfExported ExportHf(CheckpointReader& checkpoint, const ModelShape& shape, const Model& model,
                    const std::string& out, const HfExportOptions& options,
                    const ByteProgress& progress) {
  HfTokenIds ids = options.tokenizer.ids;
  const std::optional<DecoderShape> decoder = shape.family().Decoder(shape);
  const bool has_tokens = shape.Find("vocab_size").has_value();
  for (std::optional<int32_t>* id : {&ids.bos, &ids.eos, &ids.pad}) {
    if (!has_tokens || (*id && **id >= VocabSize(shape))) id->reset();
  }
  const std::string config = HfConfigToJson(shape, TorchName(options.dtype), ids);
  const HfTensors tensors(model);
  MergedWeights weights(checkpoint, model, options.state);
  const std::vector<Tensors> shards =
      Shards(tensors.tensors(), options.dtype, options.max_shard_bytes);

  HfExported exported;
  exported.files = static_cast<int>(shards.size());
  for (const HfTensors::Tensor& tensor : tensors.tensors()) {
    exported.bytes += tensor.bytes(options.dtype);
  }
  NewDirectory directory(out);
  std::map<std::string, std::string> file_of;
  int64_t done = 0;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file = ShardName(s, shards.size());
    for (const HfTensors::Tensor& tensor : shards[s]) file_of[tensor.name()] = file;
    WriteHfTensors(directory.temporary() + "/" + file, shards[s], options.dtype, weights,
                   [&](int64_t bytes) {
                     done += bytes;
                     if (progress) progress(done, exported.bytes);
                   });
  }
  if (shards.size() > 1) {
    const JsonTree index =
        JsonTree::Object({{"metadata", JsonTree::Object({{"total_size", exported.bytes}})},
                          {"weight_map", file_of}});
    WriteAtomicFile(directory.temporary() + "/model.safetensors.index.json", index.Dump(2) + "\n");
  }
  for (const auto& [file, contents] : options.tokenizer.contents) {
    WriteAtomicFile(directory.temporary() + "/" + file, contents);
  }
  if (decoder) {
    WriteAtomicFile(directory.temporary() + "/generation_config.json",
                    HfGenerationConfigToJson(ids));
  }
  WriteAtomicFile(directory.temporary() + "/config.json", config);
  directory.Publish();
  return exported;
}

}  // namespace fsdp
