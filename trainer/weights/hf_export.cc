#include "trainer/weights/hf_export.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/shape.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/new_directory.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_tree.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/initial_weights.h"
#include "trainer/weights/merged_weights.h"
#include "trainer/weights/run_tokenizer.h"

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

namespace {

// Throws DataError.
HfTokenizerFiles FilesOf(const RunTokenizer& run, const ModelShape& shape) {
  const int32_t size = OpenRunTokenizer(run)->vocab_size();
  if (size > VocabSize(shape)) {
    throw DataError("tokenizer: " + run.name + ": has " + std::to_string(size) +
                    " tokens, and the model knows " + std::to_string(VocabSize(shape)));
  }
  return ReadHfTokenizerFiles(run.name, run.eot, MaxPositions(shape), run.chat_template);
}

// The dtype of the Hugging Face directory that the run, or the run that it began with, took its
// weights from.
std::optional<DType> DTypeOfOrigin(const std::string& recipe_text) {
  constexpr int kMostRuns = 16;
  std::string text = recipe_text;
  try {
    for (int i = 0; i < kMostRuns && !text.empty(); ++i) {
      const Recipe recipe = ParseRecipe({{"the checkpoint's recipe", text}});
      if (!recipe.model.init_from) return std::nullopt;
      const std::string from = FindInitialWeights(*recipe.model.init_from);
      if (const auto dtype = ReadHfDType(from)) return dtype;
      text = ReadCheckpointMeta(from).recipe;
    }
  } catch (const Error&) {  // It is gone, or was moved.
  }
  return std::nullopt;
}

}  // namespace

CheckpointExported ExportCheckpoint(CheckpointHold hold, const std::string& out,
                                    const std::string& tokenizer, std::optional<DType> dtype,
                                    HfExportOptions options, const ByteProgress& progress) {
  CheckpointReader reader(std::move(hold));
  const std::string& checkpoint = reader.directory();
  const CheckpointMeta& meta = reader.manifest().meta;
  const ModelShape shape = ShapeFromJson(meta.config, checkpoint + "/manifest.json, config");
  const std::shared_ptr<Model> model = ModelOfCheckpoint(reader);
  CheckpointExported exported;
  RunTokenizer run;
  if (!meta.recipe.empty()) {
    run = TokenizerOfRun(ParseRecipe({{checkpoint + "/manifest.json, recipe", meta.recipe}}));
  }
  options.tokenizer.ids.eos = run.eot;
  const std::string cure = "; --tokenizer names one";
  if (!tokenizer.empty()) {
    options.tokenizer = FilesOf({tokenizer, std::nullopt, run.eot, run.chat_template}, shape);
  } else if (!shape.Find("vocab_size")) {
    // It is fed no tokens.
  } else if (run.name.empty()) {
    exported.warnings.push_back("no tokenizer files: " + checkpoint + " names no tokenizer" + cure);
  } else {
    try {
      options.tokenizer = FilesOf(run, shape);
    } catch (const DataError& error) {
      exported.warnings.push_back("no tokenizer files: " + std::string(error.what()) + cure);
    }
  }
  const std::string& type = options.tokenizer.tokenizer_class;
  if (HfModelType(shape) == "qwen2" && !type.empty() && !type.starts_with("Qwen2Tokenizer")) {
    exported.warnings.push_back(
        "transformers splits text for every qwen2 as Qwen2's own tokenizer does, whatever "
        "tokenizer_config.json says: look whether AutoTokenizer gives the ids of this one");
  }
  const std::optional<DType> origin = dtype ? std::nullopt : DTypeOfOrigin(meta.recipe);
  exported.as_it_came = origin.has_value();
  exported.dtype = options.dtype = dtype.value_or(origin.value_or(DType::kFloat32));
  exported.weights = ExportHf(reader, shape, *model, out, options, progress);
  return exported;
}

AdaptersExported ExportAdapters(CheckpointHold hold, const std::string& out,
                                HfAdapterOptions options, const ByteProgress& progress) {
  namespace fs = std::filesystem;
  CheckpointReader reader(std::move(hold));
  const std::string& checkpoint = reader.directory();
  const std::string& text = reader.manifest().meta.recipe;
  ModelRecipe model;
  if (!text.empty()) model = ParseRecipe({{checkpoint + "/manifest.json, recipe", text}}).model;
  if (!model.lora) {
    throw CheckpointError(checkpoint +
                          ": has no adapters: model.lora of its run is null. Without --adapters "
                          "the weights are exported");
  }
  options.alpha = model.lora->alpha;
  options.base = fs::absolute(*model.init_from).lexically_normal().string();
  AdaptersExported exported;
  exported.adapters = ExportHfAdapters(reader, *ModelOfCheckpoint(reader), out, options, progress);
  std::error_code ignored;
  if (!fs::exists(options.base + "/config.json", ignored)) {
    exported.warnings.push_back(
        options.base +
        " is no Hugging Face directory: give peft one with these weights (`checkpoint export` "
        "makes it of a checkpoint), and its path as base_model_name_or_path");
  }
  return exported;
}

}  // namespace fsdp
