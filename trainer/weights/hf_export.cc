#include "trainer/weights/hf_export.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "trainer/checkpoint/finite.h"
#include "trainer/checkpoint/new_directory.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_ahead.h"
#include "trainer/core/view.h"
#include "trainer/core/whole_file.h"
#include "trainer/ops/cpu/convert.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/merged_weights.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;  // Elements; two are held.
constexpr int64_t kPiece = int64_t{1} << 16;  // Of a block: stays in the cache as it is converted.

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
std::vector<Tensors> Shards(const Tensors& tensors, int64_t element_bytes, int64_t max_bytes) {
  std::vector<Tensors> shards;
  int64_t filled = 0;
  for (const HfTensors::Tensor& tensor : tensors) {
    const int64_t bytes = tensor.slice->shape.NumElements() * element_bytes;
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

// As bytes of the dtype; `buffer` holds them where they are not those of `from`.
std::span<const std::byte> Narrow(std::span<const float> from, DType dtype,
                                  const std::string& tensor, std::vector<std::byte>& buffer) {
  if (dtype == DType::kFloat32) return std::as_bytes(from);
  const auto count = static_cast<int64_t>(from.size());
  buffer.resize(static_cast<size_t>(count * SizeOf(dtype)));
  const View to(buffer.data(), dtype, Shape{count});
  if (dtype == DType::kBFloat16) {
    Convert(from.data(), count, to.As<BFloat16>());
  } else {
    Convert(from.data(), count, to.As<Float16>());
  }
  if (!FirstNotFinite(to)) return buffer;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(from[i]) && std::isinf(FloatAt(to, i))) {
      throw CheckpointError("'" + tensor + "' holds " + std::to_string(from[i]) +
                            ", which is too large for the dtype it is to be exported in");
    }
  }
  return buffer;  // What is not finite was not before.
}

}  // namespace

HfExported ExportHf(CheckpointReader& checkpoint, const ModelShape& shape, const Model& model,
                    const std::string& out, const HfExportOptions& options,
                    const ByteProgress& progress) {
  HfTokenIds ids = options.tokenizer.ids;
  for (std::optional<int32_t>* id : {&ids.bos, &ids.eos, &ids.pad}) {
    if (*id && **id >= VocabSize(shape)) id->reset();
  }
  const std::string config = HfConfigToJson(shape, TorchName(options.dtype), ids);
  const HfTensors tensors(model);
  MergedWeights weights(checkpoint, model, options.state);
  const int64_t element_bytes = SizeOf(options.dtype);
  const std::vector<Tensors> shards =
      Shards(tensors.tensors(), element_bytes, options.max_shard_bytes);

  HfExported exported;
  exported.files = static_cast<int>(shards.size());
  for (const auto& tensor : tensors.tensors()) {
    exported.bytes += tensor.slice->shape.NumElements() * element_bytes;
  }
  NewDirectory directory(out);
  std::map<std::string, std::string> file_of;
  std::array<std::vector<float>, 2> blocks;
  std::vector<std::byte> buffer;
  int64_t done = 0;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file = ShardName(s, shards.size());
    std::vector<SafetensorsEntry> entries;
    for (const auto& [parameter, slice] : shards[s]) {
      SafetensorsEntry& entry = entries.emplace_back();
      entry = {slice->name, ToSafetensorsType(options.dtype), {}};
      for (int i = 0; i < slice->shape.rank(); ++i) entry.shape.push_back(slice->shape[i]);
      file_of[slice->name] = file;
    }
    SafetensorsWriter writer(directory.temporary() + "/" + file, entries, {{"format", "pt"}});
    for (const auto& [parameter, slice] : shards[s]) {
      const auto read = [&, &p = *parameter, &tensor = *slice](int b, int64_t at, int64_t count) {
        blocks[b].resize(static_cast<size_t>(count));
        weights.Read(p, tensor.begin + at, blocks[b]);
      };
      const auto write = [&, &name = slice->name](int b, int64_t at, int64_t count) {
        for (int64_t i = 0; i < count; i += kPiece) {
          const auto piece = std::span<const float>(blocks[b]).subspan(
              static_cast<size_t>(i), static_cast<size_t>(std::min(kPiece, count - i)));
          const auto bytes = Narrow(piece, options.dtype, name, buffer);
          writer.WriteBytes(name, (at + i) * element_bytes, bytes);
          done += static_cast<int64_t>(bytes.size());
        }
        if (progress) progress(done, exported.bytes);
      };
      ReadAhead(slice->shape.NumElements(), kBlock, read, write);
    }
    writer.Finish();
  }
  if (shards.size() > 1) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", exported.bytes}}},
                                          {"weight_map", file_of}};
    WriteWholeFile(directory.temporary() + "/model.safetensors.index.json", index.dump(2) + "\n");
  }
  for (const auto& [file, contents] : options.tokenizer.contents) {
    WriteWholeFile(directory.temporary() + "/" + file, contents);
  }
  WriteWholeFile(directory.temporary() + "/generation_config.json", HfGenerationConfigToJson(ids));
  WriteWholeFile(directory.temporary() + "/config.json", config);
  directory.Publish();
  return exported;
}

}  // namespace fsdp
