#include "trainer/recipe/load.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/utf8.h"
#include "trainer/data/mixture.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/ops/adamw.h"
#include "trainer/recipe/schema.h"
#include "trainer/recipe/shape_fields.h"

namespace fsdp {
namespace {

using recipe::Json;
using recipe::KnownKeys;
using recipe::ParseYaml;
using recipe::Place;
using recipe::RecipeMistake;
using recipe::RecipeReader;
using recipe::RecipeSchema;
using recipe::WriteRecipe;
using recipe::YamlNode;

std::string ShowPlace(const Place& place, const std::vector<std::string>& sources) {
  const std::string& name = sources.at(place.source);
  if (place.line == 0) return name;
  return name + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
}

[[noreturn]] void Throw(std::vector<RecipeMistake> mistakes,
                        const std::vector<std::string>& sources) {
  std::stable_sort(mistakes.begin(), mistakes.end(),
                   [](const auto& a, const auto& b) { return a.place < b.place; });
  std::vector<std::string> lines;
  for (const RecipeMistake& mistake : mistakes) {
    std::string line = ShowPlace(mistake.place, sources) + ": ";
    if (!mistake.key.empty()) line += mistake.key + ": ";
    line += mistake.message;
    // Keys and --set can hold anything; a line stays one.
    line = Printable(line);
    std::replace(line.begin(), line.end(), '\n', ' ');
    // One written thing read through two aliases is one mistake.
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  }
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  throw ConfigError(text);
}

// A tree of maps that holds `value` at a.b.c.
std::shared_ptr<const YamlNode> Nest(const std::string& dotted, const Place& place,
                                     std::shared_ptr<const YamlNode> value) {
  size_t end = dotted.size();
  while (true) {
    const size_t dot = end == 0 ? std::string::npos : dotted.rfind('.', end - 1);
    const size_t begin = dot == std::string::npos ? 0 : dot + 1;
    auto map = std::make_shared<YamlNode>();
    map->kind = YamlNode::Kind::kMap;
    map->place = place;
    map->entries.push_back({dotted.substr(begin, end - begin), place, std::move(value)});
    value = std::move(map);
    if (dot == std::string::npos) return value;
    end = dot;
  }
}

// 0, or errno.
int ReadFile(const std::string& path, std::string& text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) return errno;
  char block[4096];
  while (const size_t n = std::fread(block, 1, sizeof(block), file.get())) text.append(block, n);
  return std::ferror(file.get()) ? errno : 0;
}

// Otherwise the files under init_from decide.
bool HasShape(const ModelRecipe& model) { return model.preset || !model.init_from; }

// A preset's family is no secret, and without files there is one to look for mistakes with.
void FillFamily(ModelRecipe& model) {
  if (model.family) return;
  if (model.preset) {
    model.family = static_cast<ModelRecipe::Family>(FindModelPreset(*model.preset)->index());
  } else if (!model.init_from) {
    model.family = ModelRecipe::Family::kGpt2;
  }
}

void FillShape(ModelRecipe& model, const DataRecipe& data) {
  const ModelShape* preset = model.preset ? FindModelPreset(*model.preset) : nullptr;
  if (preset && FamilyOf(*preset) != Name(*model.family)) {
    preset = nullptr;  // A mistake: CheckRules.
  }
  ModelShape shape = preset ? *preset : *DefaultShape(Name(*model.family));
  const std::string* tokenizer = TokenizerOf(data);
  if (!preset && tokenizer != nullptr && *tokenizer == "bytes") {
    std::visit([](auto& config) { config.vocab_size = 256; }, shape);
  }
  VisitFields(shape, [&](const char* name, auto& field) {
    const auto& given = recipe::MemberFor(model, name, field);
    if (given) field = *given;
  });
  FillDependent(shape,
                [&](std::string_view name) { return recipe::FindShapeField(name).IsGiven(model); });
  VisitFields(shape, [&](const char* name, const auto& field) {
    recipe::MemberFor(model, name, field) = field;
  });
}

// Rules that join several keys.
class Rules {
 public:
  explicit Rules(RecipeReader& reader) : reader_(reader) {}

  // `keys`: all that the rule reads. The mistake is reported at the first that somebody wrote.
  // Breaking one rule makes no key unusable for the others.
  void Require(bool holds, const std::vector<std::string>& keys, const std::string& message) {
    if (holds) return;
    for (const std::string& key : keys) {
      if (reader_.Unusable(key)) return;
    }
    for (const std::string& key : keys) {
      if (reader_.places().count(key) == 0) continue;
      reader_.mistakes().push_back({reader_.places().at(key), key, message});
      return;
    }
    reader_.mistakes().push_back({PlaceAbove(keys[0]), keys[0], message});
  }

  void RequireKeys(const Json& schema, const Json& value, const std::string& prefix) {
    for (const Json& form : schema.value("anyOf", Json::array())) RequireKeys(form, value, prefix);
    if (value.is_array() && schema.contains("items")) {
      for (size_t i = 0; i < value.size(); ++i) {
        const std::string item = prefix.substr(0, prefix.size() - 1) + "[" + std::to_string(i);
        RequireKeys(schema["items"], value[i], item + "].");
      }
    }
    if (!value.is_object() || !schema.contains("properties")) return;
    for (const Json& name : schema.value("required", Json::array())) {
      // Of a section, what it must hold says more.
      const Json& property = schema["properties"][name.get<std::string>()];
      const bool either = property.contains("anyOf") && property.contains("properties");
      if (property.contains("required") || either) continue;
      const std::string key = prefix + name.get<std::string>();
      Require(reader_.places().count(key) > 0, {key}, "required");
    }
    for (const auto& [name, property] : schema["properties"].items()) {
      if (value.contains(name)) RequireKeys(property, value[name], prefix + name + ".");
    }
  }

 private:
  // Of the nearest section above that somebody wrote, else the start of the first file.
  Place PlaceAbove(std::string key) const {
    for (size_t dot = key.find_last_of(".["); dot != std::string::npos;
         dot = key.find_last_of(".[")) {
      key.resize(dot);
      const auto found = reader_.places().find(key);
      if (found != reader_.places().end()) return found->second;
    }
    return {0, 1, 1};
  }

  RecipeReader& reader_;
};

void CheckSource(Rules& rules, const Recipe& recipe, const KeyedSource& keyed) {
  using Source = SourceRecipe::Source;
  const auto& [source, list, key] = keyed;
  const std::vector<std::string> keys = {key + ".paths", key + ".source", key};
  const std::string named = "source `" + std::string(Name(source->source)) + "`";
  if (source->source == Source::kSynthetic) {
    rules.Require(source->paths.empty(), keys, named + " has no files");
  } else {
    rules.Require(!source->paths.empty(), keys, named + " needs at least one path");
  }
  rules.Require(!source->dtype || source->source == Source::kTokens,
                {key + ".dtype", key + ".source"}, "belongs to source `tokens`, not to " + named);
  // Files of tokens may say it themselves, and a tokenizer's file does.
  const std::string* tokenizer = TokenizerOf(*source);
  const bool has_none =
      source->source == Source::kSynthetic || (tokenizer != nullptr && *tokenizer == "bytes");
  rules.Require(!recipe.data.documents || source->eot || !has_none,
                {"data.documents", key + ".eot", key},
                "data.documents needs an end-of-text token, and " +
                    (source->source == Source::kSynthetic ? named : "tokenizer `bytes`") +
                    " has none: give " + key + ".eot");
}

void CheckSources(Rules& rules, const Recipe& recipe) {
  const std::vector<KeyedSource> all = KeyedSources(recipe.data);
  for (const KeyedSource& keyed : all) CheckSource(rules, recipe, keyed);
  const KeyedSource* first = nullptr;
  for (const KeyedSource& keyed : all) {
    const std::string* tokenizer = TokenizerOf(*keyed.source);
    if (tokenizer == nullptr) continue;
    if (first == nullptr) first = &keyed;
    const std::string& other = *TokenizerOf(*first->source);
    rules.Require(*tokenizer == other,
                  {keyed.key + ".tokenizer", first->key + ".tokenizer", keyed.key},
                  keyed.key + ".tokenizer is `" + *tokenizer + "`, but " + first->key +
                      ".tokenizer is `" + other + "`: a model has one");
  }
  std::vector<double> weights;
  for (const SourceRecipe& source : recipe.data.TrainSources()) weights.push_back(source.weight);
  rules.Require(weights.empty() || Mixture::CanShare(weights), {"data.train"},
                "the weights are too far apart: a source would never be drawn from");
  const std::span<const SourceRecipe> valid = recipe.data.ValidSources();
  for (size_t i = 0; i < valid.size(); ++i) {
    for (size_t j = 0; j < i && !valid[i].name.empty(); ++j) {
      rules.Require(
          valid[i].name != valid[j].name, {"data.valid[" + std::to_string(i) + "].name"},
          "`" + valid[i].name + "` is the name of data.valid[" + std::to_string(j) + "] too");
    }
  }
}

// The preset and the fields are the family's.
void CheckFamily(Rules& rules, const ModelRecipe& model) {
  const std::string family(Name(*model.family));
  if (model.preset) {
    const std::string of(FamilyOf(*FindModelPreset(*model.preset)));
    rules.Require(of == family, {"model.preset", "model.family"},
                  "`" + *model.preset + "` is a " + of + ", but model.family is `" + family + "`");
  }
  for (const ShapeConflict& conflict : FamilyConflicts(model, family)) {
    rules.Require(false, conflict.keys, conflict.message);
  }
}

// Of every float that is smaller the kernel makes 0.
std::string AdamWEpsMessage(double eps) {
  std::ostringstream message;
  message << "optimizer.eps is " << eps
          << ", but adamw divides by it where a moment is 0: at least " << kMinAdamWEps
          << ", the smallest of fp32";
  return message.str();
}

// docs/recipe.md has these rules as a table (print.cc).
void CheckPrecision(Rules& rules, const FsdpOptions::MixedPrecision& mixed) {
  const std::string section = "fsdp.mixed_precision.", param(Name(mixed.param_dtype));
  const auto require = [&](bool holds, const char* name, DType is, const std::string& want) {
    rules.Require(holds, {section + name, section + "param_dtype"},
                  section + name + " is `" + std::string(Name(is)) + "`, but with param_dtype `" +
                      param + "` it can be " + want);
  };
  const auto either = [&](DType dtype) {
    return dtype == DType::kFloat32 || dtype == mixed.param_dtype;
  };
  const bool whole = mixed.param_dtype == DType::kFloat32;
  const std::string own = whole ? "`fp32` alone" : "`fp32` or `" + param + "`";
  require(either(mixed.grad_dtype), "grad_dtype", mixed.grad_dtype, own);
  if (!whole) require(either(mixed.reduce_dtype), "reduce_dtype", mixed.reduce_dtype, own);
  if (mixed.param_dtype != DType::kBFloat16) {
    require(mixed.master_dtype == DType::kFloat32, "master_dtype", mixed.master_dtype,
            "`fp32` alone");
  }
  const LossScalerOptions& scaler = mixed.scaler;
  rules.Require(scaler.min_scale <= scaler.init_scale,
                {section + "scaler.min_scale", section + "scaler.init_scale"},
                "the smallest scale is above the first");
}

void CheckRules(RecipeReader& reader, const Recipe& recipe, bool family_is_null) {
  Rules rules(reader);
  const bool family_written = reader.places().count("model.family") > 0;
  rules.Require(recipe.model.init_from || family_written, {"model.family"}, "required");
  rules.RequireKeys(RecipeSchema(), WriteRecipe(recipe), "");

  const std::string& name = recipe.run.name;
  rules.Require(name.find('/') == std::string::npos && name != "." && name != "..", {"run.name"},
                "a name, not a path; run.dir takes a path");

  const ModelRecipe& model = recipe.model;
  const DataRecipe& data = recipe.data;
  rules.Require(!family_is_null || !family_written || model.preset, {"model.family"},
                "null leaves it to model.init_from, which is null too");
  if (model.family) CheckFamily(rules, model);
  if (HasShape(model)) {
    for (const ShapeConflict& conflict : ShapeConflicts(recipe, ShapeOf(model))) {
      rules.Require(false, conflict.keys, conflict.message);
    }
  }

  // data.train is required: what follows from its absence is not worth a second line.
  if (reader.places().count("data.train") > 0) CheckSources(rules, recipe);

  rules.Require(recipe.schedule.warmup_steps <= recipe.train.steps,
                {"schedule.warmup_steps", "train.steps"},
                "schedule.warmup_steps is " + std::to_string(recipe.schedule.warmup_steps) +
                    ", but train.steps is " + std::to_string(recipe.train.steps));
  rules.Require(!model.lora || model.init_from, {"model.lora", "model.init_from"},
                "model.lora adapts a model that is there: it needs model.init_from");
  rules.Require(!model.lora || !model.lora->targets.empty(), {"model.lora.targets", "model.lora"},
                "no targets, so nothing to train");

  const bool wsd = recipe.schedule.name == ScheduleRecipe::Kind::kWsd;
  rules.Require(wsd || !recipe.schedule.decay_steps, {"schedule.decay_steps", "schedule.name"},
                "schedule.decay_steps belongs to `wsd`, but schedule.name is `" +
                    std::string(Name(recipe.schedule.name)) + "`");
  rules.Require(recipe.schedule.decay_steps.value_or(0) <=
                    recipe.train.steps - std::min(recipe.schedule.warmup_steps, recipe.train.steps),
                {"schedule.decay_steps", "schedule.warmup_steps", "train.steps"},
                "warm-up and decay are " + std::to_string(recipe.schedule.warmup_steps) + " + " +
                    std::to_string(recipe.schedule.decay_steps.value_or(0)) +
                    " steps, but train.steps is " + std::to_string(recipe.train.steps));

  rules.Require(recipe.eval.every == 0 || !std::holds_alternative<std::monostate>(data.valid),
                {"eval.every", "data.valid"},
                "eval.every is " + std::to_string(recipe.eval.every) + ", but data.valid is null");
  rules.Require(!recipe.eval.sample || TokenizerOf(data) != nullptr,
                {"eval.sample", "data.train.source", "data.train"},
                "eval.sample is text, but data.train is not: no source of it has a tokenizer "
                "(for source `tokens`, name the tokenizer.json or .model that made them)");

  const OptimizerRecipe& optimizer = recipe.optimizer;
  rules.Require(optimizer.name != OptimizerRecipe::Kind::kAdamW || optimizer.eps >= kMinAdamWEps,
                {"optimizer.eps"}, AdamWEpsMessage(optimizer.eps));
  rules.Require(!recipe.eval.ema || recipe.train.ema, {"eval.ema", "train.ema"},
                "eval.ema is true, but train.ema is null: there is no average to evaluate");
  rules.Require(
      recipe.optimizer.name == OptimizerRecipe::Kind::kSgd || recipe.optimizer.momentum == 0,
      {"optimizer.momentum", "optimizer.name"},
      "optimizer.momentum belongs to `sgd`, but optimizer.name is `adamw`");

  CheckPrecision(rules, recipe.fsdp.mixed_precision);
  rules.Require(recipe.fsdp.sharding_strategy != Strategy::kNoShard ||
                    recipe.fsdp.shard_size.value_or(1) == 1,
                {"fsdp.shard_size", "fsdp.sharding_strategy"},
                "`no_shard` keeps a full copy on every rank, so fsdp.shard_size can only be 1");
  rules.Require(
      !recipe.fsdp.reshard_after_forward || recipe.fsdp.sharding_strategy == Strategy::kFullShard ||
          recipe.fsdp.sharding_strategy == Strategy::kHybridShard,
      {"fsdp.reshard_after_forward", "fsdp.sharding_strategy"},
      "only `full_shard` and `hybrid_shard` free parameters after forward, so with others "
      "fsdp.reshard_after_forward can only be null");
}

}  // namespace

Recipe ParseRecipe(const std::vector<RecipeText>& texts, const std::vector<std::string>& overrides,
                   const RecipeCheck& check) {
  if (texts.empty()) throw ConfigError("no recipe: name a file with --config");
  std::vector<std::string> sources;
  for (const RecipeText& text : texts) sources.push_back(text.name);
  for (const std::string& text : overrides) sources.push_back("--set " + text);

  RecipeReader reader(KnownKeys());
  struct Layer {
    std::shared_ptr<const YamlNode> tree;
    bool is_preset;
  };
  std::vector<Layer> layers;
  bool readable = true;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto tree = ParseYaml(texts[i].text, static_cast<int>(i), true, reader.mistakes());
    readable &= tree != nullptr;
    if (tree && tree->kind != YamlNode::Kind::kNull) layers.push_back({tree, false});
  }
  const size_t files_end = layers.size();
  for (size_t i = 0; i < overrides.size(); ++i) {
    const int source = static_cast<int>(texts.size() + i);
    const Place place{source, 0, 0};
    const size_t equals = overrides[i].find('=');
    if (equals == std::string::npos || equals == 0) {
      reader.mistakes().push_back({place, "", "want KEY=VALUE"});
      continue;
    }
    const std::string key = overrides[i].substr(0, equals);
    const auto value = ParseYaml(overrides[i].substr(equals + 1), source, false, reader.mistakes());
    readable &= value != nullptr;
    if (value) layers.push_back({Nest(key, place, value), key == "model.preset"});
  }
  // What cannot be read may hold any key, so nothing can be said about the whole.
  if (!readable) Throw(reader.mistakes(), sources);
  // A preset replaces the fields of earlier layers; all overrides count as beside it.
  std::stable_partition(layers.begin() + files_end, layers.end(),
                        [](const Layer& layer) { return layer.is_preset; });

  Recipe recipe;
  for (const Layer& layer : layers) recipe::ReadRecipe(*layer.tree, reader, recipe);
  const bool family_is_null = !recipe.model.family && !recipe.model.init_from;
  FillFamily(recipe.model);
  if (HasShape(recipe.model)) FillShape(recipe.model, recipe.data);
  if (!recipe.model.init_from) {
    for (const recipe::Dropout& dropout : recipe::Dropouts()) {
      if (auto& rate = recipe.model.*dropout.member; !rate) rate = 0;
    }
  }
  CheckRules(reader, recipe, family_is_null);
  if (check) {
    Rules rules(reader);
    for (const ShapeConflict& found : check(recipe)) {
      rules.Require(false, found.keys, found.message);
    }
  }
  if (!reader.mistakes().empty()) Throw(reader.mistakes(), sources);
  for (const auto& [key, place] : reader.places()) {
    recipe.places[key] = ShowPlace(place, sources);
  }
  return recipe;
}

Recipe LoadRecipe(const std::vector<std::string>& files, const std::vector<std::string>& overrides,
                  const RecipeCheck& check) {
  std::vector<RecipeText> texts;
  std::string unreadable;
  for (const std::string& file : files) {
    RecipeText text{file, ""};
    if (const int error = ReadFile(file, text.text); error != 0) {
      unreadable += (unreadable.empty() ? "" : "\n") + file + ": " + std::strerror(error);
    }
    texts.push_back(std::move(text));
  }
  if (!unreadable.empty()) throw ConfigError(unreadable);
  return ParseRecipe(texts, overrides, check);
}

void CheckWorld(const Recipe& recipe, int64_t world_size, int64_t local_world_size) {
  if (local_world_size < 1 || local_world_size > world_size) {
    throw std::invalid_argument("[CheckWorld] want 1 <= local_world_size <= world_size, got " +
                                std::to_string(local_world_size) + " and " +
                                std::to_string(world_size));
  }
  const TrainRecipe& train = recipe.train;
  const int64_t wave = train.micro_batch_size * world_size;
  const int64_t micro_batches = (train.global_batch_size + wave - 1) / wave;
  const int64_t segments = recipe.model.num_hidden_layers.value_or(1) + 2;  // One at each end.
  if (micro_batches > kMaxScheduledRuns / segments) {
    throw ConfigError(recipe.Mistake(
        std::vector<std::string>{"train.global_batch_size", "train.micro_batch_size"},
        "a step of " + std::to_string(train.global_batch_size) + " sequences is " +
            std::to_string(micro_batches) + " micro-batches of " +
            std::to_string(train.micro_batch_size) + " on each of " + std::to_string(world_size) +
            " ranks, and its schedule holds at most " +
            std::to_string(kMaxScheduledRuns / segments) +
            " of this model: raise "
            "train.micro_batch_size"));
  }
  const FsdpOptions& fsdp = recipe.fsdp;
  if (!fsdp.shard_size || fsdp.sharding_strategy == Strategy::kNoShard) return;
  const int64_t size = *fsdp.shard_size;
  if (IsHybrid(fsdp.sharding_strategy)) {
    if (world_size % size == 0) return;
    throw ConfigError(recipe.Mistake(
        "fsdp.shard_size", "want a divisor of the world size " + std::to_string(world_size) + ": " +
                               DivisorsOf(world_size) + "; got " + std::to_string(size)));
  }
  if (size == world_size) return;
  const bool keeps = fsdp.sharding_strategy == Strategy::kShardGradOp;
  const std::string strategy(Name(fsdp.sharding_strategy));
  throw ConfigError(recipe.Mistake(
      "fsdp.shard_size", "want null or the world size " + std::to_string(world_size) + " for `" +
                             strategy + "`, got " + std::to_string(size) +
                             "; sharding in groups is `" +
                             (keeps ? "hybrid_shard_grad_op" : "hybrid_shard") + "`"));
}

void CheckReshard(const Recipe& recipe, int64_t shard_size) {
  if (!recipe.fsdp.reshard_after_forward) return;
  const int64_t k = *recipe.fsdp.reshard_after_forward;
  if (k < shard_size && shard_size % k == 0) return;
  const std::string divisors = DivisorsOf(shard_size, 2, shard_size - 1);
  throw ConfigError(recipe.Mistake("fsdp.reshard_after_forward",
                                   "want null or a divisor of the " + std::to_string(shard_size) +
                                       " ranks that share a copy, smaller than that: " +
                                       (divisors.empty() ? "there is none" : divisors) + "; got " +
                                       std::to_string(k)));
}

std::string DivisorsOf(int64_t n, int64_t least, int64_t most) {
  std::vector<std::string> divisors;
  for (int64_t d = least; d <= std::min(n, most); ++d) {
    if (n % d == 0) divisors.push_back(std::to_string(d));
  }
  if (divisors.empty()) return "";
  std::string text = divisors[0];
  for (size_t i = 1; i < divisors.size(); ++i) {
    text += (i + 1 < divisors.size() ? ", " : " or ") + divisors[i];
  }
  return text;
}

std::vector<std::string> Advice(const Recipe& recipe, int64_t world_size) {
  std::vector<std::string> advice;
  const TrainRecipe& train = recipe.train;
  const int64_t most = (train.global_batch_size + world_size - 1) / world_size;
  if (train.micro_batch_size > most) {
    advice.push_back(recipe.Mistake(
        std::vector<std::string>{"train.micro_batch_size", "train.global_batch_size"},
        "micro-batches of " + std::to_string(train.micro_batch_size) + ", but of the " +
            std::to_string(train.global_batch_size) + " sequences of a step a rank of " +
            std::to_string(world_size) + " has at most " + std::to_string(most) +
            ": the rest of each micro-batch is computed for nothing"));
  }
  return advice;
}

}  // namespace fsdp
