#include "trainer/weights/hf_export.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
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
#include "trainer/core/read_file.h"
#include "trainer/data/chat/chat_template.h"
#include "trainer/data/images/image_changes.h"
#include "trainer/nn/model.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/bnb_tensor.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/initial_weights.h"
#include "trainer/weights/merged_weights.h"
#include "trainer/weights/peft_adapter.h"
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
std::vector<Tensors> Shards(const Tensors& tensors, DType dtype, const HfValues& values,
                            int64_t max_bytes) {
  std::vector<Tensors> shards;
  int64_t filled = 0;
  for (const HfTensors::Tensor& tensor : tensors) {
    const int64_t bytes = BytesOf(tensor, dtype, values);
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

// Where `file` holds the tensor, or the parts of a coded one.
void AddToIndex(const HfTensors::Tensor& tensor, const HfValues& values, const std::string& file,
                std::map<std::string, std::string>& file_of) {
  const auto coded = values.coded.find(tensor.name());
  if (coded == values.coded.end()) {
    file_of[tensor.name()] = file;
  } else {
    for (const SafetensorsEntry& part : coded->second.entries()) file_of[part.name] = file;
  }
}

// Throws for codes that transformers would not read.
void RequireReadable(const ModelShape& shape, const Model& model, const CodedTensors& coded) {
  if (model.linear_layout() == WeightLayout::kInOut) {
    throw CheckpointError(
        "bitsandbytes' four bits are of rows that are outputs, and GPT-2's matrices lie the other "
        "way: export it without --base nf4");
  }
  for (const auto& [name, tensor] : coded) {
    for (const std::string_view glob : shape.family().kept_fp32_in_fp16()) {
      if (fnmatch(std::string(glob).c_str(), name.c_str(), 0) != 0) continue;
      throw CheckpointError(name +
                            " is in four bits, and transformers reads it in none: export it " +
                            "without --base nf4, or train with `" + std::string(glob) +
                            "` in model.lora.base_exclude");
    }
  }
}

// transformers' BitsAndBytesConfig. It would code each linear layer that is not named here, before
// it reads the layer's weight.
JsonTree QuantisationOf(const HfTensors& tensors, const HfValues& values, DType dtype) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> plain = {"lm_head"};  // No tensor where it is tied.
  for (const HfTensors::Tensor& tensor : tensors.tensors()) {
    const std::string& name = tensor.name();
    if (tensor.shape().rank() != 2 || !name.ends_with(kWeight)) continue;
    const std::string module = name.substr(0, name.size() - kWeight.size());
    if (module != plain[0] && !values.coded.contains(name)) plain.push_back(module);
  }
  const bool nested = std::any_of(values.coded.begin(), values.coded.end(), [](const auto& coded) {
    return coded.second.code() == WeightCode::kNf4Nested;
  });
  return JsonTree::Object({{"_load_in_4bit", true},
                           {"_load_in_8bit", false},
                           {"bnb_4bit_compute_dtype", TorchName(dtype)},
                           {"bnb_4bit_quant_storage", "uint8"},
                           {"bnb_4bit_quant_type", "nf4"},
                           {"bnb_4bit_use_double_quant", nested},
                           {"llm_int8_enable_fp32_cpu_offload", false},
                           {"llm_int8_has_fp16_weight", false},
                           {"llm_int8_skip_modules", plain},
                           {"llm_int8_threshold", 6.0},
                           {"load_in_4bit", true},
                           {"load_in_8bit", false},
                           {"quant_method", "bitsandbytes"}});
}

HfExported WriteDirectory(const HfValues& values, const ModelShape& shape, const Model& model,
                          const std::string& out, const HfExportOptions& options,
                          const ByteProgress& progress) {
  HfTokenIds ids = options.tokenizer.ids;
  const std::optional<DecoderShape> decoder = shape.family().Decoder(shape);
  const bool has_tokens = shape.Find("vocab_size").has_value();
  for (std::optional<int32_t>* id : {&ids.bos, &ids.eos, &ids.pad}) {
    if (!has_tokens || (*id && **id >= VocabSize(shape))) id->reset();
  }
  if (has_tokens) std::erase_if(ids.other_ends, [&](int32_t id) { return id >= VocabSize(shape); });
  std::string config = HfConfigToJson(shape, TorchName(options.dtype), ids, options.classes);
  const HfTensors tensors(model);
  if (!values.coded.empty()) {
    JsonTree json = JsonTree::Parse(config).value();
    json["quantization_config"] = QuantisationOf(tensors, values, options.dtype);
    config = json.Dump(2) + "\n";
  }
  const std::vector<Tensors> shards =
      Shards(tensors.tensors(), options.dtype, values, options.max_shard_bytes);

  HfExported exported;
  exported.files = static_cast<int>(shards.size());
  for (const HfTensors::Tensor& tensor : tensors.tensors()) {
    exported.bytes += BytesOf(tensor, options.dtype, values);
  }
  NewDirectory directory(out);
  std::map<std::string, std::string> file_of;
  int64_t done = 0;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file = ShardName(s, shards.size());
    for (const HfTensors::Tensor& tensor : shards[s]) AddToIndex(tensor, values, file, file_of);
    WriteHfTensors(directory.temporary() + "/" + file, shards[s], options.dtype, values,
                   [&](int64_t bytes) {
                     done += bytes;
                     if (progress) progress(done, exported.bytes);
                   });
  }
  if (shards.size() > 1) {
    const JsonTree index =
        JsonTree::Object({{"metadata", JsonTree::Object({{"total_size", exported.bytes}})},
                          {"weight_map", file_of}});
    directory.Write("model.safetensors.index.json", index.Dump(2) + "\n");
  }
  for (const auto& [file, contents] : options.tokenizer.contents) {
    directory.Write(file, contents);
  }
  if (decoder || (has_tokens && !options.generation.empty())) {
    directory.Write("generation_config.json", HfGenerationConfigToJson(ids, options.generation));
  }
  if (!options.image_processor.empty()) {
    directory.Write("preprocessor_config.json", options.image_processor);
  }
  directory.Write("config.json", config);
  directory.Publish();
  return exported;
}

}  // namespace

HfExported ExportHf(CheckpointReader& checkpoint, const ModelShape& shape, const Model& model,
                    const std::string& out, const HfExportOptions& options,
                    const ByteProgress& progress) {
  MergedWeights weights(checkpoint, model, options.state);
  if (!options.merge_into.empty()) {
    if (!std::filesystem::is_directory(options.merge_into)) {
      throw CheckpointError("--merge-into: " + options.merge_into + " is not a directory");
    }
    if (std::filesystem::equivalent(FindInitialWeights(options.merge_into),
                                    checkpoint.directory())) {
      throw CheckpointError("--merge-into: " + options.merge_into +
                            " is the run itself, whose adapters are merged as it is read: name "
                            "the weights that were encoded");
    }
    if (ReadInitialShape(options.merge_into) != shape) {
      throw CheckpointError("--merge-into: " + options.merge_into + " is a model of another shape");
    }
    weights.TakeBase(OpenInitialWeights(WeightsPath(options.merge_into)).parameters);
  }
  return WriteDirectory(ValuesOf(weights), shape, model, out, options, progress);
}

HfExported ExportBnb(const WeightSource& plain, const CodedTensors& coded, const ModelShape& shape,
                     const Model& model, const std::string& out, const HfExportOptions& options,
                     const ByteProgress& progress) {
  RequireReadable(shape, model, coded);
  HfValues values = {[&](const HfTensors::Tensor& tensor, int64_t begin, std::span<float> out) {
                       if (tensor.table) {
                         return plain.rows(model.tables()[tensor.table->index], begin, out);
                       }
                       plain.parameters(*tensor.parameter, tensor.slice->begin + begin, out);
                     },
                     plain.buffers};
  const HfTensors tensors(model);
  for (const HfTensors::Tensor& tensor : tensors.tensors()) {
    const auto found = coded.find(tensor.name());
    if (found == coded.end()) continue;
    std::vector<int64_t> dims;
    for (int i = 0; i < tensor.shape().rank(); ++i) dims.push_back(tensor.shape()[i]);
    values.coded.emplace(found->first,
                         BnbParts(found->first, dims, TorchName(options.dtype), found->second));
  }
  if (values.coded.size() != coded.size() || coded.empty()) {
    throw std::invalid_argument("coded tensors that the model does not have, or none");
  }
  return WriteDirectory(values, shape, model, out, options, progress);
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

// Where the run, or the run that it began with, began.
struct Origin {
  // With a config.json and what else says how the model is used: a Hugging Face directory, or an
  // import of one. Empty: there is none.
  std::string directory;
  std::vector<std::string> classes;  // The nearest run's that names any.
  std::string gone;                  // Why it cannot be read; or "".
};

Origin OriginOf(std::string from, CheckpointMeta meta) {
  constexpr int kMostRuns = 16;
  Origin origin{"", meta.classes, ""};
  try {
    for (int i = 0; i < kMostRuns && !meta.recipe.empty(); ++i) {
      const Recipe recipe = ParseRecipe({{"the checkpoint's recipe", meta.recipe}});
      if (!recipe.model.init_from) return origin;
      from = FindBaseWeights(recipe.model);
      const bool ours = PathExists(from + "/manifest.json");
      meta = ours ? ReadCheckpointMeta(from) : CheckpointMeta();
      if (!ours) meta.classes = ReadHfClasses(from);
      if (origin.classes.empty()) origin.classes = meta.classes;
    }
    if (meta.recipe.empty() && PathExists(from + "/config.json")) origin.directory = from;
  } catch (const Error& error) {  // It is gone, or was moved.
    origin.gone = error.what();
  }
  return origin;
}

// The token that ends an assistant's turn, where the run has learnt turns.
void AddEndOfTurn(const RunTokenizer& run, CheckpointExported& exported, HfTokenIds& ids) {
  if (!run.chats || run.name.empty()) return;
  try {
    const EndOfTurn end = EndOfTurnOf(ChatTemplate::Open(run.name, run.chat_template),
                                      *OpenTokenizer(run.name), JinjaDate{2026, 1, 1});
    if (end.token) ids.other_ends.push_back(*end.token);
    if (end.text.empty()) return;
    exported.warnings.push_back("answers end with `" + end.text +
                                "`, which is no token: transformers' generate() goes on behind it, "
                                "but for stop_strings");
  } catch (const DataError& error) {
    exported.warnings.push_back("no end of turn: " + std::string(error.what()));
  }
}

// AutoImageProcessor's file: what the run's evaluations do to an image. CLIP's processor is the one
// of transformers that can scale the shorter side and cut a square out of the middle, and need not.
std::string ImageProcessorJson(const ImageChanges& changes, const ModelShape& shape) {
  const auto side = std::get<int64_t>(shape.Find("image_size").value());
  const auto channels = std::get<int64_t>(shape.Find("num_channels").value());
  const bool cuts = changes.crop != Crop::kNone;
  const auto each = [&](const std::vector<double>& values) {
    return values.size() > 1 ? values
                             : std::vector<double>(static_cast<size_t>(channels), values.at(0));
  };
  const JsonTree square = JsonTree::Object({{"height", side}, {"width", side}});
  JsonTree json = JsonTree::Object({{"image_processor_type", "CLIPImageProcessor"},
                                    {"do_convert_rgb", channels == 3},
                                    {"do_resize", true},
                                    {"size", square},
                                    {"do_center_crop", cuts},
                                    {"crop_size", square},
                                    {"resample", 2},  // Bilinear.
                                    {"do_rescale", true},
                                    {"rescale_factor", 1.0 / 255},
                                    {"do_normalize", true},
                                    {"image_mean", each(changes.mean)},
                                    {"image_std", each(changes.std)}});
  if (cuts) {
    const bool sized = changes.crop != Crop::kRandomResized && changes.size > 0;
    json["size"] = JsonTree::Object({{"shortest_edge", sized ? changes.size : side}});
  }
  return json.Dump(2) + "\n";
}

// That of the first source of images; "": there is none.
std::string ImageProcessorOf(const Recipe& recipe, const ModelShape& shape,
                             std::vector<std::string>& warnings) {
  std::string first;
  for (const SourceRecipe& source : recipe.data.TrainSources()) {
    const auto changes = RowOf(source).image_changes;
    if (changes == nullptr) continue;
    const std::string json = ImageProcessorJson(changes(source), shape);
    if (first.empty()) first = json;
    if (json == first) continue;
    warnings.push_back(
        "the sources of data.train change their images in several ways: preprocessor_config.json "
        "has the first one's");
    break;
  }
  return first;
}

}  // namespace

// Throws CheckpointError for options that need a coded base where the run has none.
void RequireCoded(const CheckpointReader& reader, const Model& model,
                  const HfExportOptions& options) {
  if (!options.coded && options.merge_into.empty()) return;
  const std::string flag = options.coded ? "--base nf4" : "--merge-into";
  const auto& base = reader.manifest().meta.base;
  if (!base) {
    throw CheckpointError(reader.directory() +
                          ": its run kept no weights in four or eight bits "
                          "(model.lora.base), so " +
                          flag + " has nothing to do");
  }
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      if (p->code() != WeightCode::kInt8 || !options.coded) continue;
      throw CheckpointError(reader.directory() +
                            ": its base is int8, for which bitsandbytes has no such form: leave "
                            "out --base nf4");
    }
  }
}

CodedTensors CodedOf(const RecordSource& records, const Model& model) {
  CodedTensors coded;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      if (p->code() == WeightCode::kNone) continue;
      for (const ParameterSlice& slice : p->slices()) {
        coded[slice.name] = {p->code(), [records, p, &slice](int64_t first, std::span<uint8_t> to) {
                               records.fill(*p, slice, first, to, {});
                             }};
      }
    }
  }
  return coded;
}

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
  if (meta.recipe.empty()) {  // It was imported.
    run.name = TokenizerFileIn(checkpoint).value_or("");
    const std::string images = checkpoint + "/preprocessor_config.json";
    if (PathExists(images)) options.image_processor = ReadWholeFile(images);
  } else {
    const Recipe recipe = ParseRecipe({{checkpoint + "/manifest.json, recipe", meta.recipe}});
    run = TokenizerOfRun(recipe);
    exported.adapts = recipe.model.lora && recipe.model.lora->rank > 0;
    options.image_processor = ImageProcessorOf(recipe, shape, exported.warnings);
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
  if (!tokenizer.empty()) run.name = tokenizer;
  const Origin origin = OriginOf(checkpoint, meta);
  options.classes = origin.classes;
  std::optional<DType> came_as;
  if (!origin.directory.empty()) {
    came_as = ReadHfDType(origin.directory);
    options.generation = ReadHfGenerationConfig(origin.directory);
    options.tokenizer.ids.other_ends = ReadHfEos(origin.directory);
  } else if (!origin.gone.empty() && shape.Find("vocab_size")) {
    exported.warnings.push_back("no generation settings of model.init_from: " + origin.gone);
  }
  AddEndOfTurn(run, exported, options.tokenizer.ids);
  const std::string& type = options.tokenizer.tokenizer_class;
  if (HfModelType(shape) == "qwen2" && !type.empty() && !type.starts_with("Qwen2Tokenizer")) {
    exported.warnings.push_back(
        "transformers splits text for every qwen2 as Qwen2's own tokenizer does, whatever "
        "tokenizer_config.json says: look whether AutoTokenizer gives the ids of this one");
  }
  exported.as_it_came = !dtype && came_as;
  exported.dtype = options.dtype = dtype.value_or(came_as.value_or(DType::kFloat32));
  RequireCoded(reader, *model, options);
  if (options.coded) {
    const WeightSource stored = OpenStoredWeights(
        std::make_unique<CheckpointReader>(HoldCheckpoint(checkpoint)), options.state == "ema");
    exported.weights = ExportBnb(stored, CodedOf(stored.records.value(), *model), shape, *model,
                                 out, options, progress);
  } else {
    exported.weights = ExportHf(reader, shape, *model, out, options, progress);
  }
  return exported;
}

std::vector<int32_t> EndsOfOrigin(const std::string& checkpoint, const CheckpointMeta& meta) {
  const Origin origin = OriginOf(checkpoint, meta);
  try {
    return origin.directory.empty() ? std::vector<int32_t>() : ReadHfEos(origin.directory);
  } catch (const CheckpointError&) {  // It is damaged by now.
    return {};
  }
}

}  // namespace fsdp
