#include "trainer/weights/peft_adapter.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/json_text.h"
#include "trainer/core/read_file.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"
#include "trainer/weights/hf_hints.h"

namespace fsdp {
namespace {

constexpr JsonErrors kErrors{
    .raise = [](const std::string& message) { throw CheckpointError(message); },
    .shows_value = true};

// Keys that change nothing in W + scale x B A once A and B are there, or are read below.
constexpr std::string_view kHarmless[] = {"alpha_pattern",
                                          "auto_mapping",
                                          "base_model_name_or_path",
                                          "eva_config",
                                          "exclude_modules",
                                          "fan_in_fan_out",
                                          "inference_mode",
                                          "layers_pattern",
                                          "layers_to_transform",
                                          "lora_alpha",
                                          "lora_dropout",
                                          "megatron_core",
                                          "peft_type",
                                          "peft_version",
                                          "qalora_group_size",
                                          "r",
                                          "rank_pattern",
                                          "revision",
                                          "target_modules",
                                          "task_type",
                                          "use_rslora"};
const std::string kPrefix = kPeftPrefix;
// Initial values of A and B alone; others change the base as well, or are a quantised base's.
constexpr const char* kInits[] = {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\""};

JsonValue ReadConfig(const std::string& directory) {
  const std::string path = directory + "/adapter_config.json";
  const FileText read = ReadFileText(path, kMostTextBytes);
  if (!read.why.empty()) throw CheckpointError(path + ": " + read.why);
  JsonValue config = ParseJson(JsonOfPython(read.text), path, kErrors);
  if (!config.IsObject()) config.Refuse("is not a JSON object");
  return config;
}

void RefuseOthers(const JsonValue& config) {
  const auto type = config.Find("peft_type");
  if (!type || !type->IsText("LORA")) {
    config.Refuse("peft_type",
                  (type ? type->Show() : "null") + " is not in this version, only \"LORA\"");
  }
  for (const auto& [key, value] : config.Members()) {
    const auto& all = kHarmless;
    if (std::find(std::begin(all), std::end(all), key.c_str()) != std::end(all)) continue;
    const bool is_init = key == "init_lora_weights" &&
                         std::any_of(std::begin(kInits), std::end(kInits),
                                     [&value = value](const char* init) { return value.Is(init); });
    const bool is_none = (key == "bias" && (value.IsText("none") || value.IsText("all") ||
                                            value.IsText("lora_only"))) ||
                         (key == "modules_to_save" && value.IsList());
    const bool is_off = value.IsNull() || value.Is("false") || value.Is("{}") || value.Is("[]");
    if (!is_init && !is_none && !is_off) {
      config.Refuse(key, value.Show() +
                             " is not in this version: merge the adapter with peft "
                             "(merge_and_unload(), save_pretrained()) and take the merged weights");
    }
  }
}

// Whether peft's get_pattern_key() takes a key of rank_pattern or alpha_pattern for a module: a
// regular expression for its end. Refuses those with more than names and points.
bool Matches(const JsonValue& pattern, const std::string& key, std::string_view module) {
  std::string_view name = key;
  const bool whole = name.starts_with('^');
  if (whole) name.remove_prefix(1);
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
  });
  if (!plain) pattern.Refuse(Quote(key) + " is a regular expression, which is not in this version");
  if (name.size() > module.size()) return false;
  const size_t before = module.size() - name.size();
  if (before > 0 && (whole || module[before - 1] != '.')) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '.' && name[i] != module[before + i]) return false;
  }
  return true;
}

// The number for a module, from the pattern or else `standard`.
double NumberFor(const JsonValue& config, const char* pattern_key, const char* standard,
                 const std::string& module) {
  std::optional<double> found;
  if (const auto pattern = config.Find(pattern_key)) {
    for (const auto& [key, value] : pattern->Members()) {
      if (!Matches(*pattern, key, module)) continue;
      if (found && *found != value.Number()) {
        pattern->Refuse("has two numbers for " + module);
      }
      found = value.Number();
    }
  }
  return found ? *found : config.At(standard).Number();
}

// "x" of "base_model.model.x.lora_A.weight", and "lora_A.weight". A tensor that is stored whole, as
// those of modules_to_save, biases, and "x.base_layer.weight" of an adapted embedding, has no
// second part, and the model's name.
std::pair<std::string, std::string> Cut(std::string_view name) {
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  if (const size_t at = name.rfind(".lora_"); at != std::string_view::npos) {
    return {std::string(name.substr(0, at)), std::string(name.substr(at + 1))};
  }
  std::string whole(name);
  constexpr std::string_view kBase = ".base_layer.";
  if (const size_t at = whole.rfind(kBase); at != std::string::npos)
    whole.erase(at, kBase.size() - 1);
  return {whole, ""};
}

// As an embedding of two stacks is.
bool IsShared(const Model& model, const Parameter& parameter) {
  const auto reads = [&](const ModelSegment& segment) {
    const auto among = [&](const auto& all) {
      return std::find(all.begin(), all.end(), &parameter) != all.end();
    };
    return among(segment.parameters) || among(segment.reads);
  };
  return std::count_if(model.segments().begin(), model.segments().end(), reads) > 1;
}

// Without A and B.
LoraFactors FactorsFor(const JsonValue& config, const Parameter& parameter,
                       const ParameterSlice& slice, WeightLayout layout) {
  const std::string module = ModuleOf(slice.name);
  const double rank = NumberFor(config, "rank_pattern", "r", module);
  const double alpha = NumberFor(config, "alpha_pattern", "lora_alpha", module);
  constexpr double kMostRank = 1 << 20;
  if (!(rank >= 1 && rank <= kMostRank) || rank != std::floor(rank)) {
    config.Refuse("r", "the rank of " + module + " is no number from 1 on");
  }
  const auto root = config.Find("use_rslora");
  const bool rows_are_outputs = layout == WeightLayout::kOutIn;
  LoraFactors factors;
  factors.rank = static_cast<int64_t>(rank);
  factors.scale = alpha / (root && root->Boolean() ? std::sqrt(rank) : rank);
  factors.layout = layout;
  factors.columns = rows_are_outputs ? slice.rows : parameter.shape()[1];
  factors.column = rows_are_outputs ? slice.begin / parameter.shape()[1] : 0;
  return factors;
}

// The file, where it is there.
std::string FileIn(const std::string& directory) {
  std::string path = directory + "/adapter_model.safetensors";
  if (PathExists(path)) return path;
  throw CheckpointError(directory + ": holds no adapter_model.safetensors" +
                        HowToGetWeights(directory));
}

}  // namespace

bool HoldsPeftAdapter(const std::string& directory) {
  return PathExists(directory + "/adapter_config.json");
}

std::string PeftBase(const std::string& directory) {
  const auto base = ReadConfig(directory).Find("base_model_name_or_path");
  return base ? base->Text() : "";
}

PeftAdapter::PeftAdapter(const std::string& directory, const Model& model, bool is_tied)
    : file_(FileIn(directory)) {
  const JsonValue config = ReadConfig(directory);
  RefuseOthers(config);
  std::map<std::string, std::set<std::string>> parts;  // By module.
  std::map<std::string, std::string> stored;  // By the name that Cut() gives: that in the file.
  for (const std::string& name : file_.Names()) {
    const auto [module, part] = Cut(name);
    parts[module].insert(part);
    if (part.empty()) stored[module] = name;
  }
  const std::set<std::string> linear = {"lora_A.weight", "lora_B.weight"},
                              embedding = {"lora_embedding_A", "lora_embedding_B"};
  const auto refuse_shared = [&](const std::string& what) {
    throw CheckpointError(file_.path() + ": adapts '" + what +
                          "', which the model uses in two places: only adapters of what is used "
                          "once are in this version");
  };
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      for (const ParameterSlice& slice : parameter->slices()) {
        const auto found = stored.find(slice.name);
        if (found == stored.end()) continue;
        const bool ties = is_tied && !segment.is_block && slice.shape.rank() == 2;
        if (ties || IsShared(model, *parameter)) refuse_shared(slice.name);
        Require(found->second, slice.shape);
        whole_[slice.name] = found->second;
        parts.erase(slice.name);
      }
      if (parameter->shape().rank() != 2) continue;
      for (const ParameterSlice& slice : parameter->slices()) {
        const std::string module = ModuleOf(slice.name);
        const auto found = parts.find(module);
        if (module == slice.name || found == parts.end()) continue;
        const bool of_rows = found->second == embedding;
        if (found->second != linear && !of_rows) continue;
        if ((of_rows && is_tied) || IsShared(model, *parameter)) refuse_shared(module);
        // A block's linear layers have the model's layout, all others torch's. A row of an
        // embedding is what one of its inputs gives.
        const WeightLayout layout = of_rows            ? WeightLayout::kInOut
                                    : segment.is_block ? model.linear_layout()
                                                       : WeightLayout::kOutIn;
        const std::string begin = of_rows ? "lora_embedding_" : "lora_";
        const std::string end = of_rows ? "" : ".weight";
        Place place{.a = NameOf(module + "." + begin + "A" + end),
                    .b = NameOf(module + "." + begin + "B" + end),
                    .factors = FactorsFor(config, *parameter, slice, layout)};
        const int64_t inputs = layout == WeightLayout::kOutIn ? slice.shape[1] : slice.shape[0];
        Require(place.a, Shape{place.factors.rank, inputs});
        Require(place.b, Shape{place.factors.columns, place.factors.rank});
        places_[parameter->name()].push_back(std::move(place));
        parts.erase(found);
      }
    }
  }
  for (const auto& [module, found] : parts) {
    throw CheckpointError(file_.path() + ": holds '" + module +
                          (found.begin()->empty() ? "" : "." + *found.begin()) +
                          "', which is no weight of the model, nor A and B of one: merge the "
                          "adapter with peft (merge_and_unload(), save_pretrained()) and take the "
                          "merged weights");
  }
}

std::string PeftAdapter::NameOf(const std::string& tensor) const {
  return file_.Contains(kPrefix + tensor) ? kPrefix + tensor : tensor;
}

void PeftAdapter::Require(const std::string& tensor, const Shape& shape) const {
  const std::vector<int64_t>& there = file_.Info(tensor).shape;
  bool same = static_cast<int>(there.size()) == shape.rank();
  for (int i = 0; same && i < shape.rank(); ++i) same = there[static_cast<size_t>(i)] == shape[i];
  if (same) {
    file_.ReadFloat(tensor, 0, {});  // Refuses a dtype that cannot be read.
    return;
  }
  std::string text;
  for (const int64_t n : there) text += (text.empty() ? "" : ", ") + std::to_string(n);
  throw CheckpointError(file_.path() + ": tensor '" + tensor + "' has shape [" + text + "], want " +
                        shape.ToString() + " for the model and the rank in adapter_config.json");
}

std::shared_ptr<const PeftAdapter::Loaded> PeftAdapter::Load(const Parameter& parameter) const {
  const auto found = places_.find(parameter.name());
  if (found == places_.end()) return nullptr;
  const std::lock_guard lock(mutex_);
  if (loaded_ && loaded_name_ == parameter.name()) return loaded_;
  auto loaded = std::make_shared<Loaded>();
  for (const Place& place : found->second) {
    LoraFactors& f = loaded->emplace_back(place.factors);
    f.a.resize(static_cast<size_t>(file_.Info(place.a).NumElements()));
    f.b.resize(static_cast<size_t>(file_.Info(place.b).NumElements()));
    file_.ReadFloat(place.a, 0, f.a);
    file_.ReadFloat(place.b, 0, f.b);
  }
  loaded_name_ = parameter.name();
  loaded_ = loaded;
  return loaded;
}

void PeftAdapter::Add(const Parameter& parameter, int64_t begin, std::span<float> values) const {
  for (const SlicePiece& piece : SlicePieces(parameter, begin, std::ssize(values))) {
    const auto found = whole_.find(piece.slice->name);
    if (found == whole_.end()) continue;
    file_.ReadFloat(
        found->second, piece.begin,
        values.subspan(static_cast<size_t>(piece.at), static_cast<size_t>(piece.count)));
  }
  const auto loaded = Load(parameter);
  if (!loaded) return;
  for (const LoraFactors& f : *loaded) AddLora(f, parameter.shape(), begin, values);
}

}  // namespace fsdp
