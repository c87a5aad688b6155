#include "trainer/weights/hf_adapters.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "models/shape.h"
#include "trainer/checkpoint/new_directory.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_tree.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/initial_weights.h"
#include "trainer/weights/merged_weights.h"
#include "trainer/weights/peft_adapter.h"

namespace fsdp {
namespace {

std::string LastPart(const std::string& module) { return module.substr(module.rfind('.') + 1); }

struct Adapters {
  std::vector<HfTensors::Tensor> tensors;
  std::vector<std::string> adapted, all, whole;  // Modules.
  std::deque<ParameterSlice> renamed;            // Those of `whole`, by PEFT's names.
  int64_t rank = 0;
};

// The slice of `weight` that this one of an adapter's A is beside.
const ParameterSlice& SliceOf(const Parameter& weight, const ParameterSlice& a) {
  for (const ParameterSlice& slice : weight.slices()) {
    if (LoraName(slice.name, 'A') == a.name) return slice;
  }
  FSDP_CHECK(false) << a.name << " is of no slice of " << weight.name();
}

// Parameters that train whole.
void AddWhole(const Parameter& parameter, Adapters& found) {
  for (const ParameterSlice& slice : parameter.slices()) {
    const std::string module = slice.name.substr(0, slice.name.rfind('.'));
    if (std::ranges::find(found.whole, module) == found.whole.end()) found.whole.push_back(module);
    found.renamed.push_back(slice);
    found.renamed.back().name = kPeftPrefix + slice.name;
    found.tensors.push_back({&parameter, &found.renamed.back()});
  }
}

Adapters AdaptersOf(const Model& model) {
  Adapters found;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      if (parameter->trainable() && !parameter->is_adapter()) AddWhole(*parameter, found);
      if (!segment.is_block || parameter->shape().rank() != 2 || parameter->is_adapter()) continue;
      for (const ParameterSlice& slice : parameter->slices()) {
        found.all.push_back(ModuleOf(slice.name));
      }
      for (const Adapter& adapter : parameter->adapters()) {
        found.rank = adapter.b->shape()[1];
        for (const ParameterSlice& a : adapter.a->slices()) {
          found.adapted.push_back(ModuleOf(SliceOf(*parameter, a).name));
        }
        for (size_t e = 0; e < adapter.a->slices().size(); ++e) {
          for (const Parameter* factor : {adapter.a, adapter.b}) {
            found.tensors.push_back({factor, &factor->slices()[e]});
          }
        }
      }
    }
  }
  return found;
}

// As PEFT's LoraConfig; what is left out has its default there.
std::string ConfigJson(const Adapters& adapters, const Model& model,
                       const HfAdapterOptions& options) {
  const bool whole = options.alpha == std::floor(options.alpha) && options.alpha < 1e15;
  const JsonTree alpha =
      whole ? JsonTree(static_cast<int64_t>(options.alpha)) : JsonTree(options.alpha);
  return JsonTree::Object(
             {{"peft_type", "LORA"},
              {"task_type", options.task.empty() ? JsonTree() : JsonTree(options.task)},
              {"base_model_name_or_path", options.base},
              {"revision", nullptr},
              {"inference_mode", true},
              {"r", adapters.rank},
              {"lora_alpha", alpha},
              {"lora_dropout", options.dropout},
              {"target_modules", TargetModules(adapters.adapted, adapters.all)},
              {"fan_in_fan_out", model.linear_layout() == WeightLayout::kInOut},
              {"bias", "none"},
              {"modules_to_save", adapters.whole.empty() ? JsonTree() : JsonTree(adapters.whole)},
              {"init_lora_weights", true},
              {"use_rslora", false},
              {"use_dora", false}})
             .Dump(2) +
         "\n";
}

}  // namespace

std::vector<std::string> TargetModules(const std::vector<std::string>& adapted,
                                       const std::vector<std::string>& all) {
  const std::set<std::string> have(adapted.begin(), adapted.end());
  std::set<std::string> partial;  // Last parts of modules without an adapter.
  for (const std::string& module : all) {
    if (have.count(module) == 0) partial.insert(LastPart(module));
  }
  std::set<std::string> targets;
  for (const std::string& module : have) {
    const std::string last = LastPart(module);
    targets.insert(partial.count(last) > 0 ? module : last);
  }
  return {targets.begin(), targets.end()};
}

HfAdaptersExported ExportHfAdapters(CheckpointReader& checkpoint, const Model& model,
                                    const std::string& out, const HfAdapterOptions& options,
                                    const ByteProgress& progress) {
  const Adapters adapters = AdaptersOf(model);
  FSDP_CHECK(!adapters.tensors.empty()) << "a model without adapters";
  MergedWeights weights(checkpoint, model, options.state);
  HfAdaptersExported exported;
  exported.weights = static_cast<int>(adapters.adapted.size());
  for (const HfTensors::Tensor& tensor : adapters.tensors) {
    exported.bytes += tensor.slice->shape.NumElements() * SizeOf(options.dtype);
  }
  NewDirectory directory(out);
  int64_t done = 0;
  WriteHfTensors(directory.temporary() + "/adapter_model.safetensors", adapters.tensors,
                 options.dtype, ValuesOf(weights), [&](int64_t bytes) {
                   done += bytes;
                   if (progress) progress(done, exported.bytes);
                 });
  WriteAtomicFile(directory.temporary() + "/adapter_config.json",
                  ConfigJson(adapters, model, options));
  directory.Publish();
  return exported;
}

std::string LostBesideExperts(const Model& model) {
  std::set<std::string> of_experts;
  std::map<std::string, std::string> others;  // A weight by its module's last part.
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      for (const Adapter& adapter : parameter->adapters()) {
        for (const ParameterSlice& a : adapter.a->slices()) {
          const std::string& name = SliceOf(*parameter, a).name;
          const std::string last = LastPart(ModuleOf(name));
          if (parameter->is_of_experts()) {
            of_experts.insert(last);
          } else {
            others.emplace(last, name);
          }
        }
      }
    }
  }
  for (const auto& [last, name] : others) {
    if (of_experts.count(last) > 0) return name;
  }
  return "";
}

namespace {

// PEFT keeps a copy of each module that trains whole, so that a head tied to a table would not be.
void RequireUntied(const ModelShape& shape, const Model& model, const std::string& checkpoint) {
  const std::optional<FieldValue> tied = shape.Find("tie_word_embeddings");
  if (!tied || !std::get<bool>(*tied)) return;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      if (segment.is_block || p->shape().rank() != 2 || p->is_adapter() || !p->trainable())
        continue;
      throw CheckpointError(checkpoint + ": " + p->name() +
                            " has trained whole and is the model's table and its head: peft would "
                            "keep two. Without --adapters they are merged");
    }
  }
}

}  // namespace

AdaptersExported ExportAdapters(CheckpointHold hold, const std::string& out,
                                HfAdapterOptions options, const ByteProgress& progress) {
  namespace fs = std::filesystem;
  CheckpointReader reader(std::move(hold));
  const std::string& checkpoint = reader.directory();
  const CheckpointMeta& meta = reader.manifest().meta;
  const std::string& text = meta.recipe;
  ModelRecipe model;
  if (!text.empty()) model = ParseRecipe({{checkpoint + "/manifest.json, recipe", text}}).model;
  if (!model.lora || model.lora->rank == 0) {
    throw CheckpointError(checkpoint +
                          ": has no adapters: model.lora of its run is null. Without --adapters "
                          "the weights are exported");
  }
  options.alpha = model.lora->alpha;
  options.dropout = model.lora->dropout;
  const bool of_run = options.base.empty();
  if (of_run) options.base = *model.init_from;
  options.base = fs::absolute(options.base).lexically_normal().string();
  AdaptersExported exported;
  const ModelShape shape = ShapeFromJson(meta.config, checkpoint + "/manifest.json, config");
  if (shape.family().Decoder(shape)) {
    options.task = "CAUSAL_LM";
  } else if (shape.family().TargetDecoder(shape)) {
    options.task = "SEQ_2_SEQ_LM";
  } else {
    exported.warnings.push_back(
        "the adapters have the names of the weights' files, and the modules of transformers 5 have "
        "others: peft does not find them there. Without --adapters they are merged");
  }
  if (of_run && meta.base) {
    exported.warnings.push_back("the adapters have learnt over a base in " +
                                std::string(Name(model.lora->base)) +
                                ": load the base so, or export both with --base nf4");
  }
  const std::shared_ptr<Model> trained = ModelOfCheckpoint(reader);
  RequireUntied(shape, *trained, checkpoint);
  if (const std::string lost = LostBesideExperts(*trained); !lost.empty()) {
    exported.warnings.push_back("peft 0.21 leaves out the adapter of " + lost +
                                " in silence, as of all that have the names of experts' modules: "
                                "without --adapters all are merged");
  }
  exported.adapters = ExportHfAdapters(reader, *trained, out, options, progress);
  std::error_code ignored;
  if (!fs::exists(options.base + "/config.json", ignored) || HoldsPeftAdapter(options.base)) {
    exported.warnings.push_back(
        options.base +
        " is no Hugging Face directory: give peft one with these weights (`checkpoint export` "
        "makes it of a checkpoint), and its path as base_model_name_or_path");
  }
  return exported;
}

}  // namespace fsdp
