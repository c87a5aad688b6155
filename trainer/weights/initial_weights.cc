#include "trainer/weights/initial_weights.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "models/shape.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/fsdp/records.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"
#include "trainer/ops/weight_codes.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_hints.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"
#include "trainer/weights/merged_weights.h"
#include "trainer/weights/peft_adapter.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Weights {
  std::string directory;
  bool ours;                 // A checkpoint; otherwise a Hugging Face directory.
  std::string adapter = {};  // The directory of a PEFT adapter to merge; empty: none.
};

bool IsPeft(const std::string& directory) {
  return HoldsPeftAdapter(directory) && !PathExists(directory + "/manifest.json");
}

Weights FindWithoutAdapter(const std::string& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    if (fs::exists(directory, ignored)) RefuseWhatIsNoCheckpoint(directory);
    throw CheckpointError("model.init_from: " + directory + " is not a directory" +
                          HowToDownload(directory));
  }
  if (PathExists(directory + "/manifest.json")) return {directory, true};
  if (PathExists(directory + "/config.json")) return {directory, false};
  std::string no_run;
  try {
    return {ResolveCheckpoint(directory), true};
  } catch (const CheckpointError& error) {
    no_run = error.what();
  }
  throw CheckpointError("model.init_from: " + directory +
                        " holds neither a config.json nor a manifest.json, nor a run to begin "
                        "from: " +
                        no_run + WhatItIs(directory));
}

// As transformers, an adapter is of the weights beside it, or else of the base that it names.
Weights Find(const WeightsPath& from) {
  const std::string& directory = from.directory;
  if (!IsPeft(directory)) {
    if (from.base.empty()) return FindWithoutAdapter(directory);
    throw CheckpointError("model.base: " + from.base +
                          " would be the base of a PEFT adapter, but " + "model.init_from, " +
                          directory + ", is none: leave out one of them");
  }
  Weights found{directory, false};
  if (!from.base.empty() || !PathExists(directory + "/config.json")) {
    const std::string base = from.base.empty() ? PeftBase(directory) : from.base;
    std::error_code ignored;
    if (base.empty() || !fs::is_directory(base, ignored) || IsPeft(base)) {
      throw CheckpointError(
          directory + " is a PEFT adapter, and its base, " +
          (from.base.empty() ? "base_model_name_or_path of its adapter_config.json"
                             : "model.base") +
          ", is " +
          (base.empty() ? "not named" : "`" + base + "`, which is no directory of weights here") +
          ": write the base's path there" + (from.base.empty() ? " or in model.base" : "") +
          ", or merge the adapter with peft (merge_and_unload(), save_pretrained()) and take the "
          "merged weights" +
          HowToDownload(base));
    }
    found = FindWithoutAdapter(base);
  }
  found.adapter = directory;
  return found;
}

std::shared_ptr<const PeftAdapter> OpenAdapter(const std::string& directory,
                                               const ModelShape& shape) {
  const std::optional<FieldValue> tied = shape.Find("tie_word_embeddings");
  return std::make_shared<PeftAdapter>(directory, *MakeModel(shape), tied && std::get<bool>(*tied));
}

WeightSource WithAdapter(WeightSource base, std::shared_ptr<const PeftAdapter> adapter) {
  base.records.reset();  // Values change, so records do.
  base.parameters = [read = std::move(base.parameters), adapter = std::move(adapter)](
                        const Parameter& parameter, int64_t begin, std::span<float> values) {
    read(parameter, begin, values);
    adapter->Add(parameter, begin, values);
  };
  return base;
}

// Weights of a checkpoint of ours, for any thread.
class OwnWeights {
 public:
  // `merge`: the adapters, into what they adapt.
  OwnWeights(std::unique_ptr<CheckpointReader> reader, const std::string& state, bool merge)
      : reader_(std::move(reader)),
        model_(ModelOfCheckpoint(*reader_)),
        merge_(merge),
        merged_(*reader_, *model_, state) {
    for (const ModelSegment& segment : model_->segments()) {
      for (const Parameter* p : segment.parameters) parameters_[p->name()] = p;
    }
    for (const EmbeddingTable& table : model_->tables()) {
      tables_[table.name] = static_cast<int>(tables_.size());
    }
  }

  void Fill(const Parameter& parameter, int64_t begin, std::span<float> values) {
    const auto it = parameters_.find(WholeName(parameter.name()));
    const std::optional<NamedRows> rows = RowsOfName(parameter.name());
    // The first element in the whole.
    const int64_t first =
        rows ? rows->begin * (parameter.shape().NumElements() / parameter.shape()[0]) : 0;
    if (it == parameters_.end() || (!rows && it->second->shape() != parameter.shape()) ||
        it->second->shape().NumElements() < first + parameter.shape().NumElements()) {
      throw CheckpointError(reader_->directory() + ": has no parameter '" + parameter.name() +
                            "' of shape " + parameter.shape().ToString());
    }
    begin += first;
    const std::lock_guard lock(mutex_);  // The reader keeps one chunk.
    merge_ ? merged_.Read(*it->second, begin, values)
           : merged_.ReadPlain(*it->second, begin, values);
  }

  // Those of the weights that the run began with; nothing where none are coded.
  std::optional<RecordSource> Records() { return merged_.Records(); }

  void Fill(const ModelBuffer& buffer, int64_t begin, const View& values) {
    const std::lock_guard lock(mutex_);
    merged_.ReadBuffer(buffer, begin, values);
  }

  void Fill(const EmbeddingTable& table, int64_t begin, std::span<float> values) {
    const std::lock_guard lock(mutex_);
    const auto it = tables_.find(table.name);
    if (it == tables_.end() || model_->tables()[it->second].rows != table.rows ||
        model_->tables()[it->second].width != table.width) {
      throw CheckpointError(reader_->directory() + ": has no table '" + table.name + "' of " +
                            std::to_string(table.rows) + " rows of " + std::to_string(table.width));
    }
    merged_.ReadTable(it->second, begin, values);
  }

 private:
  std::mutex mutex_;
  const std::unique_ptr<CheckpointReader> reader_;
  const std::shared_ptr<Model> model_;
  const bool merge_;
  MergedWeights merged_;
  std::unordered_map<std::string, const Parameter*> parameters_;
  std::unordered_map<std::string, int> tables_;  // The model's.
};

WeightSource FillFrom(const std::shared_ptr<OwnWeights>& own) {
  return {[own](const Parameter& parameter, int64_t begin, std::span<float> values) {
            own->Fill(parameter, begin, values);
          },
          [own](const ModelBuffer& buffer, int64_t begin, const View& values) {
            own->Fill(buffer, begin, values);
          },
          [own](const EmbeddingTable& table, int64_t begin, std::span<float> values) {
            own->Fill(table, begin, values);
          }};
}

}  // namespace

WeightsPath::WeightsPath(const ModelRecipe& model)
    : directory(model.init_from.value()), base(model.base.value_or("")) {}

std::string FindInitialWeights(const WeightsPath& from) {
  const Weights found = Find(from);
  return found.adapter.empty() ? found.directory : found.adapter;
}

std::string FindBaseWeights(const WeightsPath& from) { return Find(from).directory; }

bool IsOfHuggingFace(const std::string& path) {
  return !PathExists(path + "/manifest.json") &&
         (PathExists(path + "/config.json") || HoldsPeftAdapter(path));
}

ModelShape ReadInitialShape(const WeightsPath& from) {
  const Weights found = Find(from);
  if (found.ours) {
    return ShapeFromJson(ReadCheckpointMeta(found.directory).config,
                         found.directory + "/manifest.json, config");
  }
  return ReadHfConfig(found.directory).shape;
}

std::vector<int32_t> InitialEos(const WeightsPath& from) {
  const Weights found = Find(from);
  const bool says = !found.ours || PathExists(found.directory + "/config.json");  // An import's.
  return says ? ReadHfEos(found.directory) : std::vector<int32_t>();
}

HeadToDraw FindHeadToDraw(const ModelShape& shape, const WeightsPath& from) {
  const ModelHead& head = shape.family().head();
  if (head.tensors.empty()) return {};
  const Weights found = Find(from);
  if (!head.field.empty() && ReadInitialShape(from).Find(head.field) != shape.Find(head.field)) {
    return {head, false};
  }
  const std::optional<FieldValue> tied = shape.Find("tie_word_embeddings");
  if (found.ours || (tied && std::get<bool>(*tied))) return {};
  const HfWeights files(found.directory);
  const bool there = std::any_of(head.tensors.begin(), head.tensors.end(),
                                 [&](const auto& name) { return files.Holds(std::string(name)); });
  return there ? HeadToDraw() : HeadToDraw{head, true};
}

std::vector<std::string> IgnoredKeys(const WeightsPath& from) {
  const Weights found = Find(from);
  return found.ours ? std::vector<std::string>() : ReadHfConfig(found.directory).ignored;
}

std::vector<std::string> InitialNotes(const WeightsPath& from) {
  const Weights found = Find(from);
  std::vector<std::string> notes;
  if (!found.ours) {
    notes = ReadHfConfig(found.directory).notes;
  } else if (ReadCheckpointMeta(found.directory).base) {
    notes.push_back(
        "its run kept frozen weights in four or eight bits: they are decoded, with its "
        "adapters merged into them, and model.lora.base encodes the sum anew");
  }
  if (!found.adapter.empty()) {
    notes.push_back("the PEFT adapter of " + found.adapter + " is merged into these weights");
  }
  return notes;
}

RunTokenizer InitialTokenizer(const WeightsPath& from) {
  const Weights found = Find(from);
  for (const std::string& folder : {found.adapter, found.directory}) {  // Or an import's.
    const auto file = folder.empty() ? std::nullopt : TokenizerFileIn(folder);
    if (!file) continue;
    RunTokenizer tokenizer;
    tokenizer.name = *file;
    return tokenizer;
  }
  if (found.ours) {
    const std::string recipe = ReadCheckpointMeta(found.directory).recipe;
    if (recipe.empty()) return {};  // It was imported, without a tokenizer.
    return TokenizerOfRun(ParseRecipe({{found.directory + "/manifest.json, recipe", recipe}}));
  }
  return {};
}

std::shared_ptr<Model> ModelOfCheckpoint(const CheckpointReader& reader) {
  const CheckpointMeta& meta = reader.manifest().meta;
  std::shared_ptr<Model> model =
      MakeModel(ShapeFromJson(meta.config, reader.directory() + "/manifest.json, config"));
  if (meta.recipe.empty()) return model;  // It was imported.
  const Recipe recipe = ParseRecipe({{reader.directory() + "/manifest.json, recipe", meta.recipe}});
  if (const auto& lora = recipe.model.lora; lora && lora->rank > 0) {
    model = std::make_unique<LoraModel>(std::move(model), *lora);
  }
  std::unordered_map<std::string, WeightCode> base;
  for (const FlatParameter& flat : reader.manifest().flat_parameters) {
    if (!flat.of_base) continue;
    for (const Placement& p : flat.parameters) base[WholeName(p.name)] = flat.dtypes.code;
  }
  for (const ModelSegment& segment : model->segments()) {
    for (Parameter* p : segment.parameters) {
      const auto code = base.find(p->name());
      if (code == base.end()) continue;
      p->Freeze();
      if (code->second != WeightCode::kNone) p->Encode(code->second);
    }
  }
  return model;
}

WeightSource OpenInitialWeights(std::unique_ptr<CheckpointReader> checkpoint) {
  return FillFrom(std::make_shared<OwnWeights>(std::move(checkpoint), "master", /*merge=*/true));
}

WeightSource OpenStoredWeights(std::unique_ptr<CheckpointReader> checkpoint, bool averaged) {
  auto own = std::make_shared<OwnWeights>(std::move(checkpoint), averaged ? "ema" : "master",
                                          /*merge=*/false);
  WeightSource source = FillFrom(own);
  source.records = own->Records();
  return source;
}

namespace {

// Weights in four bits as they are in the files; others are encoded. Nothing where there are none.
std::optional<RecordSource> RecordsOf(const std::shared_ptr<const HfWeights>& weights,
                                      const std::string& directory) {
  if (!weights->HoldsCoded()) return std::nullopt;
  RecordSource source = RecordsOf(
      RequireFinite({[weights](const Parameter& parameter, int64_t begin, std::span<float> values) {
                      weights->FillParameter(parameter, begin, values);
                    }},
                    directory, "encoded")
          .parameters);
  source.is_whole = [weights](const ParameterSlice& slice) {
    return weights->CodeOf(slice.name) != WeightCode::kNone;
  };
  source.fill = [weights, directory, encode = source.fill](
                    const Parameter& parameter, const ParameterSlice& slice, int64_t first,
                    std::span<uint8_t> records, std::span<float> scales) {
    const WeightCode there = weights->CodeOf(slice.name);
    if (there == WeightCode::kNone) return encode(parameter, slice, first, records, scales);
    if (there == parameter.code()) return weights->ReadRecords(slice.name, first, records);
    throw ConfigError(directory + ": has " + slice.name + " in nf4 with scales in " +
                      (there == WeightCode::kNf4 ? "fp32" : "8 bits") +
                      ", which is not encoded again: set model.lora.base: nf4 and base_scales: " +
                      (there == WeightCode::kNf4 ? "fp32" : "8bit"));
  };
  return source;
}

WeightSource OpenFiles(const std::string& directory, const ModelShape& shape,
                       const ModelHead& head) {
  const auto weights = std::make_shared<HfWeights>(directory);
  weights->RequireAll(HfTensors(*MakeModel(shape)), head);
  return {[weights](const Parameter& parameter, int64_t begin, std::span<float> values) {
            weights->FillParameter(parameter, begin, values);
          },
          [weights](const ModelBuffer& buffer, int64_t begin, const View& values) {
            weights->FillBuffer(buffer, begin, values);
          },
          [weights](const EmbeddingTable& table, int64_t begin, std::span<float> values) {
            weights->Fill(table.name, Shape{table.rows, table.width}, begin, values);
          },
          RecordsOf(weights, directory)};
}

}  // namespace

WeightSource OpenInitialWeights(const WeightsPath& from, const ModelHead& head) {
  const Weights found = Find(from);
  const ModelShape shape = ReadInitialShape(from);
  WeightSource weights =
      found.ours ? OpenInitialWeights(std::make_unique<CheckpointReader>(found.directory))
                 : OpenFiles(found.directory, shape, head);
  if (found.adapter.empty()) return weights;
  return WithAdapter(std::move(weights), OpenAdapter(found.adapter, shape));
}

namespace {

// The first element of records that is NaN or infinite, in words; empty: there is none.
std::string DescribeNotFinite(const Parameter& parameter, const ParameterSlice& slice,
                              int64_t first, std::span<const uint8_t> records) {
  const int64_t begin = first * kWeightRecord;
  const int64_t all = std::ssize(records) / RecordBytes(parameter.code()) * kWeightRecord;
  std::vector<float> values(static_cast<size_t>(std::min(all, slice.shape.NumElements() - begin)));
  DecodeRecords(parameter.code(), records.data(), values);
  const auto bytes = std::as_bytes(std::span<const float>(values));
  return DescribeNotFinite(slice.name, begin,
                           ConstView(bytes.data(), DType::kFloat32, Shape{std::ssize(values)}));
}

}  // namespace

RecordSource RecordsOf(const WeightSource& source) {
  return source.records.value_or(RecordsOf(source.parameters));
}

void RequireForms(const WeightSource& source, const Model& model) {
  if (!source.records) return;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      if (p->code() == WeightCode::kNone) continue;
      for (const ParameterSlice& slice : p->slices()) source.records->fill(*p, slice, 0, {}, {});
    }
  }
}

WeightSource RequireFinite(WeightSource read, const std::string& source, const std::string& use) {
  const auto require = [source, use](const std::string& wrong) {
    if (wrong.empty()) return;
    throw CheckpointError(source + ": " + wrong + ": not finite, so nothing can be " + use +
                          " from it");
  };
  std::optional<RecordSource> records = std::move(read.records);
  if (records) {
    records->fill = [fill = records->fill, is_whole = records->is_whole, require](
                        const Parameter& parameter, const ParameterSlice& slice, int64_t first,
                        std::span<uint8_t> bytes, std::span<float> scales) {
      fill(parameter, slice, first, bytes, scales);
      if (is_whole(slice)) require(DescribeNotFinite(parameter, slice, first, bytes));
    };
  }
  return {.parameters =
              [read = std::move(read.parameters), require](const Parameter& parameter,
                                                           int64_t begin, std::span<float> values) {
                read(parameter, begin, values);
                require(DescribeNotFinite(parameter, begin, values));
              },
          .buffers =
              [read = std::move(read.buffers), require](const ModelBuffer& buffer, int64_t begin,
                                                        const View& values) {
                read(buffer, begin, values);
                require(DescribeNotFinite(buffer.name(), begin, values));
              },
          .rows =
              [read = std::move(read.rows), require](const EmbeddingTable& table, int64_t begin,
                                                     std::span<float> values) {
                read(table, begin, values);
                const auto bytes = std::as_bytes(values);
                require(DescribeNotFinite(
                    table.name, begin,
                    ConstView(bytes.data(), DType::kFloat32, Shape{std::ssize(values)})));
              },
          .records = std::move(records)};
}

}  // namespace fsdp
