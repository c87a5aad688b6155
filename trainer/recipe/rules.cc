#include "trainer/recipe/rules.h"

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/shape.h"
#include "trainer/core/units.h"
#include "trainer/data/mixture.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/optimizer_rules.h"
#include "trainer/recipe/schema.h"

namespace fsdp::recipe {
namespace {

// Rules that join several keys.
class Rules {
 public:
  explicit Rules(RecipeReader& reader) : reader_(reader) {}

  // `keys`: all that the rule reads. The mistake is reported at the first that somebody wrote. Its
  // keys stay usable for other rules.
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
    for (const Json& form : schema.ElementsOf("anyOf")) RequireKeys(form, value, prefix);
    if (value.IsList() && schema.Contains("items")) {
      for (size_t i = 0; i < value.size(); ++i) {
        const std::string item = prefix.substr(0, prefix.size() - 1) + "[" + std::to_string(i);
        RequireKeys(schema["items"], value[i], item + "].");
      }
    }
    if (!value.IsObject() || !schema.Contains("properties")) return;
    for (const Json& name : schema.ElementsOf("required")) {
      // A missing section is told by the keys that it must hold.
      const Json& property = schema["properties"][name.Text()];
      const bool either = property.Contains("anyOf") && property.Contains("properties");
      if (property.Contains("required") || either) continue;
      const std::string key = prefix + name.Text();
      Require(reader_.places().count(key) > 0, {key}, "required");
    }
    for (const auto& [name, property] : schema["properties"].Members()) {
      if (value.Contains(name)) RequireKeys(property, value[name], prefix + name + ".");
    }
  }

 private:
  // The place of the nearest section above that somebody wrote, else the start of the first file.
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

// Keys that belong to another source, and the rules of its own.
void CheckOwnKeys(Rules& rules, const Recipe& recipe, const DataSource& row,
                  const SourceRecipe& source, const std::string& key) {
  const std::string named = "source `" + source.source + "`";
  const SourceRecipe plain;
  const auto value = [](const AnyField& field, const SourceRecipe& of) {
    return field.type->Write(static_cast<const std::byte*>(field.part(&of)) + field.offset);
  };
  for (const DataSource* owner : DataSources()) {
    for (const auto& [field, is_own] : owner->keys) {
      if (owner == &row || !is_own) continue;
      rules.Require(value(field, source) == value(field, plain),
                    {key + "." + field.name, key + ".source"},
                    "belongs to source `" + std::string(owner->name) + "`, not to " + named);
    }
  }
  if (row.check) {
    row.check(source, key,
              [&](bool holds, const std::vector<std::string>& keys, const std::string& message) {
                rules.Require(holds, keys, message);
              });
  }
  const bool causal = recipe.data.objective == DataRecipe::Objective::kCausal;
  rules.Require(!row.is_whole || !causal || recipe.data.packing != Packing::kWindows,
                {"data.packing", key + ".source"},
                "data.packing `windows` cuts anywhere, but " + named +
                    " is whole samples: give samples or none");
}

void CheckSource(Rules& rules, const Recipe& recipe, const KeyedSource& keyed) {
  const auto& [source, list, key] = keyed;
  const DataSource& row = RowOf(*source);
  const std::vector<std::string> keys = {key + ".paths", key + ".source", key};
  const std::string named = "source `" + source->source + "`";
  if (row.files == DataSource::Files::kNone) {
    rules.Require(source->paths.empty(), keys, named + " has no files");
  } else if (row.files == DataSource::Files::kNeeded) {
    rules.Require(!source->paths.empty(), keys, named + " needs at least one path");
  }
  CheckOwnKeys(rules, recipe, row, *source, key);
  // Files of tokens may name the end-of-text token themselves, and a tokenizer's file does.
  const std::string* tokenizer = TokenizerOf(*source);
  const bool has_none =
      tokenizer ? *tokenizer == "bytes" : row.tokenizer == DataSource::Tokenizer::kNone;
  const bool needs = row.eot == DataSource::Eot::kNeeded;
  const std::string wants = row.eot == DataSource::Eot::kNone ? ""
                            : needs                           ? named
                                                              : recipe.data.WantsEot();
  rules.Require(wants.empty() || source->eot || !has_none,
                {recipe.data.objective != DataRecipe::Objective::kCausal ? "data.objective"
                 : wants == "data.documents"                             ? wants
                 : needs                                                 ? key + ".source"
                                                                         : "data.packing",
                 key + ".eot", key},
                wants + " needs an end-of-text token, and " +
                    (tokenizer ? "tokenizer `bytes`" : named) + " has none: give " + key + ".eot");
}

void CheckPacking(Rules& rules, const DataRecipe& data) {
  const bool windows = data.packing == Packing::kWindows;
  const std::string packing = "data.packing is `" + std::string(Name(data.packing)) + "`";
  rules.Require(windows || !data.documents, {"data.documents", "data.packing"},
                "data.documents belongs to `windows`, but " + packing +
                    ", which always keeps documents apart: leave data.documents out");
  const bool apart = data.objective == DataRecipe::Objective::kSeq2Seq;
  rules.Require(!windows || apart || data.too_long == TooLong::kError,
                {"data.too_long", "data.packing"},
                "data.too_long belongs to `samples` and `none`, but " + packing +
                    ", which cuts documents anywhere: leave data.too_long out");
}

void CheckAttention(Rules& rules, const TrainRecipe& train, const DataRecipe& data) {
  const std::string key = data.documents ? "data.documents" : "data.packing";
  const bool math = train.attention == TrainRecipe::Attention::kMath;
  rules.Require(!math || !data.SeparatesDocuments(), {"train.attention", key},
                "`math` attends across documents, which " + key +
                    " keeps apart: set train.attention to `flash`, or " + key + " to `" +
                    (data.documents ? "false`" : "windows`"));
}

// "text and tokens".
std::string NamesOfSources(const std::function<bool(const DataSource&)>& holds) {
  std::string names;
  for (const DataSource* row : DataSources()) {
    if (holds(*row)) names += (names.empty() ? "" : " and ") + std::string(row->name);
  }
  return names;
}

// Keys that belong to an objective.
void CheckObjective(Rules& rules, const DataRecipe& data) {
  using Objective = DataRecipe::Objective;
  const bool spans = data.objective == Objective::kSpanCorruption;
  const std::string named = "data.objective is `" + std::string(Name(data.objective)) + "`";
  const auto belongs = [&](bool is_plain, const char* key, const std::string& to) {
    rules.Require(is_plain, {key, "data.objective"},
                  std::string(key) + " belongs to " + to + ", but " + named);
  };
  const DataRecipe plain;
  if (!spans) {
    belongs(data.noise_density == plain.noise_density, "data.noise_density", "`span_corruption`");
    belongs(data.mean_span == plain.mean_span, "data.mean_span", "`span_corruption`");
  }
  if (data.objective == Objective::kCausal) {
    return belongs(!data.target_len, "data.target_len", "`seq2seq` and `span_corruption`");
  }
  belongs(!data.documents, "data.documents", "`causal`");
  const std::string fitting =
      NamesOfSources([&](const DataSource& row) { return row.objective == data.objective; });
  for (const auto& [source, list, key] : KeyedSources(data)) {
    rules.Require(RowOf(*source).objective == data.objective,
                  {key + ".source", key, "data.objective"},
                  named + ", which is of " + fitting + ", not of `" + source->source + "`");
  }
  if (!spans) return;
  const std::optional<SpanLengths> text = LongestText(data.spans(), data.seq_len);
  rules.Require(text.has_value(), {"data.seq_len"},
                "an input of `span_corruption` takes at least 3 tokens: one that stays, a sentinel "
                "and end-of-text");
  if (!text || !data.target_len) return;
  rules.Require(*data.target_len >= text->target(), {"data.target_len", "data.seq_len"},
                "data.target_len is " + std::to_string(*data.target_len) + ", but what " +
                    std::to_string(text->length) + " tokens lose takes " +
                    std::to_string(text->target()) + ": raise it, or leave it out");
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
  std::unordered_map<std::string, size_t> names;  // The first source of each name.
  for (size_t i = 0; i < valid.size(); ++i) {
    if (valid[i].name.empty()) continue;
    const auto [at, is_new] = names.emplace(valid[i].name, i);
    rules.Require(is_new, {"data.valid[" + std::to_string(i) + "].name"},
                  "`" + valid[i].name + "` is the name of data.valid[" +
                      std::to_string(at->second) + "] too");
  }
}

// The preset and the fields must belong to the family.
void CheckFamily(Rules& rules, const ModelRecipe& model) {
  const std::string& family = *model.family;
  if (model.preset) {
    const std::string of(FamilyOf(*FindModelPreset(*model.preset)));
    rules.Require(of == family, {"model.preset", "model.family"},
                  "`" + *model.preset + "` is a " + of + ", but model.family is `" + family + "`");
  }
  for (const ShapeConflict& conflict : FamilyConflicts(model, family)) {
    rules.Require(false, conflict.keys, conflict.message);
  }
}

// docs/recipe.md has these rules as a table (print.cc).
void CheckPrecision(Rules& rules, const FsdpOptions::MixedPrecision& mixed, bool deterministic) {
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
  rules.Require(mixed.sum != FsdpOptions::MixedPrecision::Sum::kNccl || !deterministic,
                {section + "sum", "run.deterministic"},
                "NCCL adds in an order of its own, but run.deterministic wants one order: leave "
                "sum out, or set it to `exact`");
  const LossScalerOptions& scaler = mixed.scaler;
  rules.Require(scaler.min_scale <= scaler.init_scale,
                {section + "scaler.min_scale", section + "scaler.init_scale"},
                "the smallest scale is above the first");
}

void CheckPaperRuntime(Rules& rules, const Recipe& recipe) {
  const FsdpOptions& fsdp = recipe.fsdp;
  rules.Require(
      fsdp.buffers == FsdpOptions::Buffers::kSlots || fsdp.limiter == FsdpOptions::Limiter::kHost,
      {"fsdp.limiter", "fsdp.buffers"},
      "`device` limits gathers by slots, and with fsdp.buffers `caching` there are none: "
      "set fsdp.limiter to `host`");
  rules.Require(fsdp.buffers == FsdpOptions::Buffers::kCaching || !fsdp.concat_gradients,
                {"fsdp.concat_gradients", "fsdp.buffers"},
                "`slots` have no place for what fsdp.concat_gradients copies: set fsdp.buffers to "
                "`caching`, or this to false");
  for (const auto& [key, moves, none] :
       {std::tuple("fsdp.cpu_offload.optimizer", fsdp.cpu_offload.optimizer, "false"),
        {"train.activation_offload", recipe.train.activation_offload != ActivationOffload::kNone,
         "none"}}) {
    rules.Require(fsdp.buffers == FsdpOptions::Buffers::kSlots || !moves, {"fsdp.buffers", key},
                  std::string("`caching` leaves all memory on the device, but ") + key +
                      " moves some to the host: set fsdp.buffers to `slots`, or " + key + " to `" +
                      none + "`");
  }
  const auto& [resume, every] = std::pair(recipe.checkpoint.resume.kind, recipe.checkpoint.every);
  const bool resumes = resume != ResumeRecipe::Kind::kAuto && resume != ResumeRecipe::Kind::kNone;
  for (const auto& [key, fake] : {std::pair("fsdp.fake_all_gather", fsdp.fake_all_gather),
                                  std::pair("fsdp.fake_reduce", fsdp.fake_reduce)}) {
    const std::string why = std::string(" with ") + key + ", whose weights mean nothing";
    rules.Require(
        !fake || !every, {"checkpoint.every", key},
        "checkpoint.every is " + std::to_string(every.value_or(0)) + why + ": set it to null");
    rules.Require(!fake || !recipe.checkpoint.every_minutes, {"checkpoint.every_minutes", key},
                  "saves" + why + ": set it to null");
    rules.Require(!fake || !resumes, {"checkpoint.resume", key},
                  "nothing can be resumed" + why + ": set checkpoint.resume to none");
  }
}

}  // namespace

void CheckRules(RecipeReader& reader, const Recipe& recipe, bool family_is_null) {
  Rules rules(reader);
  const bool family_written = reader.places().count("model.family") > 0;
  rules.Require(recipe.model.init_from || recipe.model.preset || family_written, {"model.family"},
                "required");
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

  CheckPacking(rules, data);
  CheckAttention(rules, recipe.train, data);
  CheckObjective(rules, data);
  // data.train is required; nothing that follows from its absence is reported as well.
  if (reader.places().count("data.train") > 0) CheckSources(rules, recipe);

  rules.Require(!model.base || model.init_from, {"model.base", "model.init_from"},
                "is the base of a PEFT adapter, which model.init_from has to name");
  rules.Require(!model.lora || model.init_from, {"model.lora", "model.init_from"},
                "model.lora adapts a model that is there: it needs model.init_from");
  rules.Require(!model.lora || !model.lora->targets.empty(), {"model.lora.targets", "model.lora"},
                "no targets, so nothing to train");
  const bool adapts = !model.lora || model.lora->rank > 0;
  rules.Require(adapts || model.lora->base != LoraBase::kNone, {"model.lora.rank"},
                "0 means no adapters, which leaves model.lora nothing to do without base");
  rules.Require(adapts || model.lora->targets == LoraOptions().targets,
                {"model.lora.targets", "model.lora.rank"},
                "names what gets adapters, and rank 0 means none");
  rules.Require(
      !model.lora || model.lora->base != LoraBase::kNone || model.lora->base_exclude.empty(),
      {"model.lora.base_exclude", "model.lora.base"},
      "names what is not encoded, and base none encodes nothing");
  rules.Require(adapts || model.lora->full.empty(), {"model.lora.full", "model.lora.rank"},
                "names what trains beside adapters, and rank 0 means none: optimizer.groups says "
                "what is frozen");

  const TrainRecipe& train = recipe.train;
  rules.Require(!train.epochs || train.steps == 0, {"train.epochs", "train.steps"},
                "train.epochs stands in place of train.steps, which is " +
                    std::to_string(train.steps) + ": set that to null, or this one");
  rules.Require(train.epochs || train.steps > 0, {"train.steps", "train.epochs"},
                "train.steps is null, and so is train.epochs: how long is the run?");

  const bool wsd = recipe.schedule.name == ScheduleRecipe::Kind::kWsd;
  rules.Require(wsd || !recipe.schedule.decay_steps, {"schedule.decay_steps", "schedule.name"},
                "schedule.decay_steps belongs to `wsd`, but schedule.name is `" +
                    std::string(Name(recipe.schedule.name)) + "`");
  rules.Require(train.steps == 0 || recipe.schedule.decay_steps.value_or(0) <=
                                        recipe.train.steps - std::min(recipe.schedule.warmup_steps,
                                                                      recipe.train.steps),
                {"schedule.decay_steps", "schedule.warmup_steps", "train.steps"},
                "warm-up and decay are " + std::to_string(recipe.schedule.warmup_steps) + " + " +
                    std::to_string(recipe.schedule.decay_steps.value_or(0)) +
                    " steps, but train.steps is " + std::to_string(recipe.train.steps));

  rules.Require(recipe.eval.every == 0 || !std::holds_alternative<std::monostate>(data.valid),
                {"eval.every", "data.valid"},
                "eval.every is " + std::to_string(recipe.eval.every) + ", but data.valid is null");
  rules.Require(!recipe.eval.stop_after || recipe.eval.every > 0, {"eval.stop_after", "eval.every"},
                "eval.stop_after counts evaluations, but eval.every is 0");
  rules.Require(recipe.checkpoint.keep_best == 0 || recipe.eval.every > 0,
                {"checkpoint.keep_best", "eval.every"},
                "checkpoint.keep_best goes by evaluations, but eval.every is 0");
  rules.Require(recipe.checkpoint.keep_best == 0 || recipe.checkpoint.keep_last > 0,
                {"checkpoint.keep_best", "checkpoint.keep_last"},
                "checkpoint.keep_last is 0, which keeps all");
  const std::string made_by = NamesOfSources(
      [](const DataSource& row) { return row.tokenizer == DataSource::Tokenizer::kMadeBy; });
  std::vector<std::string> sampled = {"eval.sample"};
  for (const KeyedSource& keyed : KeyedSources(data)) {
    if (keyed.list == "data.train") sampled.push_back(keyed.key + ".source");
  }
  rules.Require(!recipe.eval.sample || TokenizerOf(data) != nullptr, sampled,
                "eval.sample is text, but data.train is not: no source of it has a tokenizer "
                "(for source `" +
                    made_by + "`, name the tokenizer.json or .model that made them)");

  CheckOptimizer(recipe, [&](bool holds, const std::vector<std::string>& keys,
                             const std::string& message) { rules.Require(holds, keys, message); });
  rules.Require(!recipe.eval.ema || recipe.train.ema, {"eval.ema", "train.ema"},
                "eval.ema is true, but train.ema is null: there is no average to evaluate");
  CheckPrecision(rules, recipe.fsdp.mixed_precision, recipe.run.deterministic);
  CheckPaperRuntime(rules, recipe);
  rules.Require(recipe.fsdp.sharding_strategy != Strategy::kNoShard ||
                    recipe.fsdp.shard_size.value_or(1) == 1,
                {"fsdp.shard_size", "fsdp.sharding_strategy"},
                "`no_shard` keeps a full copy on every rank, so fsdp.shard_size can only be 1");
  const FsdpOptions::CpuOffload& offload = recipe.fsdp.cpu_offload;
  rules.Require(!offload.params || offload.optimizer,
                {"fsdp.cpu_offload.params", "fsdp.cpu_offload.optimizer"},
                "fsdp.cpu_offload.params is true, but fsdp.cpu_offload.optimizer is false: "
                "parameters are updated where their masters are, so set that, too");
  const bool spills = recipe.train.activation_offload == ActivationOffload::kSpill;
  rules.Require(!offload.spill || offload.optimizer || spills,
                {"fsdp.cpu_offload.spill", "fsdp.cpu_offload.optimizer"},
                "fsdp.cpu_offload.spill takes what the host updates to a disk, but "
                "fsdp.cpu_offload.optimizer is false: set that, too");
  rules.Require(offload.spill || !spills, {"train.activation_offload", "fsdp.cpu_offload.spill"},
                "train.activation_offload is `spill`, but fsdp.cpu_offload.spill is null: name a "
                "directory there");
  rules.Require(offload.optimizer_share == 0 || offload.optimizer,
                {"fsdp.cpu_offload.optimizer_share", "fsdp.cpu_offload.optimizer"},
                "fsdp.cpu_offload.optimizer_share divides the updates of "
                "fsdp.cpu_offload.optimizer, which is false: set that, too");
  rules.Require(
      !recipe.fsdp.reshard_after_forward || recipe.fsdp.sharding_strategy == Strategy::kFullShard ||
          recipe.fsdp.sharding_strategy == Strategy::kHybridShard,
      {"fsdp.reshard_after_forward", "fsdp.sharding_strategy"},
      "only `full_shard` and `hybrid_shard` free parameters after forward, so with others "
      "fsdp.reshard_after_forward can only be null");
  const FsdpOptions::Quantize& quantize = recipe.fsdp.quantize;
  rules.Require(quantize.gather == FsdpOptions::Quantize::Gather::kNone ||
                    recipe.fsdp.sharding_strategy != Strategy::kNoShard,
                {"fsdp.quantize.gather", "fsdp.sharding_strategy"},
                "`no_shard` gathers nothing that could be quantised: set fsdp.quantize.gather to "
                "none, or another fsdp.sharding_strategy");
  const bool reduces = quantize.reduce != FsdpOptions::Quantize::Reduce::kNone;
  rules.Require(!reduces || recipe.fsdp.sharding_strategy != Strategy::kNoShard,
                {"fsdp.quantize.reduce", "fsdp.sharding_strategy"},
                "`no_shard` sums no shards that could be quantised: set fsdp.quantize.reduce to "
                "none, or another fsdp.sharding_strategy");
  const DType reduced = recipe.fsdp.mixed_precision.reduce_dtype;
  rules.Require(!reduces || reduced == DType::kFloat32,
                {"fsdp.quantize.reduce", "fsdp.mixed_precision.reduce_dtype"},
                "quantised reductions replace reduce_dtype, which is `" +
                    std::string(Name(reduced)) +
                    "`: leave it out, or set fsdp.quantize.reduce to none");
}

void AddMistake(RecipeReader& reader, const std::vector<std::string>& keys,
                const std::string& message) {
  Rules(reader).Require(false, keys, message);
}

}  // namespace fsdp::recipe
