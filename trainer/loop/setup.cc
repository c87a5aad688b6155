#include "trainer/loop/setup.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "models/shape.h"
#include "trainer/core/errors.h"
#include "trainer/core/process_limits.h"
#include "trainer/core/units.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/loop/run_directory.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

std::vector<ParameterGroup> GroupsOf(const Recipe& recipe) {
  std::vector<ParameterGroup> groups;
  for (const GroupRecipe& g : recipe.optimizer.groups) {
    groups.push_back({g.match, g.weight_decay, g.lr_scale, g.frozen, g.rule, g.state_dtype});
  }
  return groups;
}

// `weight`: a name that one could match; empty: there is none.
std::string ExampleOfTargets(const std::string& target, std::string weight) {
  if (weight.empty()) return "the model has none";
  if (target == "all-linear") return "`*` is all of them";
  std::string text = "a name is " + weight;
  weight.resize(weight.rfind('.'));
  return text + ", and " + weight.substr(weight.rfind('.') + 1) + " means it in every layer";
}

// Gives the model its adapters, and freezes what optimizer.groups says.
std::vector<ShapeConflict> AdaptAndFreeze(const Recipe& recipe, std::shared_ptr<Model>& model) {
  std::vector<ShapeConflict> mistakes;
  if (const auto& lora = recipe.model.lora; lora && lora->rank > 0) {
    LoraOptions options = *lora;
    std::string example;
    const std::vector<size_t> unmatched = UnmatchedTargets(*model, options.targets, &example);
    for (auto i = unmatched.rbegin(); i != unmatched.rend(); ++i) {
      const std::string key = "model.lora.targets";
      mistakes.push_back({{key + "[" + std::to_string(*i) + "]", key},
                          "`" + options.targets[*i] +
                              "` matches no weight of a linear layer in a block; " +
                              ExampleOfTargets(options.targets[*i], example)});
      options.targets.erase(options.targets.begin() + static_cast<int64_t>(*i));
    }
    std::reverse(mistakes.begin(), mistakes.end());
    for (const FullMistake& mistake : FullMistakes(*model, options.full)) {
      const std::string key = "model.lora.full";
      mistakes.push_back({{key + "[" + std::to_string(mistake.entry) + "]", key}, mistake.message});
      options.full.clear();
    }
    if (const std::string why = ExpertMistake(*model, options); !why.empty()) {
      mistakes.push_back({{"model.lora.dropout", "model.lora.targets", "model.lora"}, why});
      return mistakes;
    }
    if (options.targets.empty()) return mistakes;  // Nothing trains, which is no mistake of groups.
    auto adapted = std::make_unique<LoraModel>(std::move(model), options);
    if (!adapted->has_adapters()) {
      mistakes.push_back({{"model.lora.full", "model.lora"},
                          "leaves no weight for an adapter: without model.lora all train"});
    }
    model = std::move(adapted);
  }
  std::vector<GroupMistake> of_groups = FreezeParameters(*model, GroupsOf(recipe));
  OptimizerOptions optimizer;
  optimizer.kind = recipe.optimizer.name;
  optimizer.groups = GroupsOf(recipe);
  if (of_groups.empty()) of_groups = MuonMistakes(optimizer, *model);
  for (const GroupMistake& mistake : of_groups) {
    const std::string list = "optimizer.groups";
    if (mistake.group < 0) {
      mistakes.push_back({{list, "optimizer.name"}, mistake.message});
    } else {
      const std::string item = list + "[" + std::to_string(mistake.group) + "]";
      mistakes.push_back({{item + ".match", list}, mistake.message});
    }
  }
  if (recipe.model.lora && mistakes.empty()) {
    for (const BaseMistake& mistake : EncodeFrozen(*model, *recipe.model.lora)) {
      const std::string list = "model.lora.base_exclude";
      const std::string item =
          mistake.entry ? list + "[" + std::to_string(*mistake.entry) + "]" : "model.lora.base";
      mistakes.push_back({{item, list, "model.lora"}, mistake.message});
    }
  }
  for (const KeepMistake& mistake : KeepMistakes(recipe.fsdp.mixed_precision.keep_fp32, *model)) {
    const std::string list = "fsdp.mixed_precision.keep_fp32";
    mistakes.push_back({{list + "[" + std::to_string(mistake.glob) + "]", list}, mistake.message});
  }
  return mistakes;
}

// The shape in init_from's files. A run that goes on has its own: those files may have changed, or
// be gone.
struct FoundShape {
  ModelShape shape;
  WeightsPath where;
};
FoundShape FindShape(const Recipe& recipe) {
  if (const auto run = FindRunToResume(recipe)) return {run->shape, run->checkpoint};
  return {ReadInitialShape(recipe.model), recipe.model};
}

// For a hybrid strategy without a shard_size.
int RanksOfEachHost(const Recipe& recipe, const HostPlacement& hosts) {
  if (hosts.SmallestHost() == hosts.LargestHost()) return hosts.LargestHost();
  throw ConfigError(recipe.Mistake(
      std::vector<std::string>{"fsdp.shard_size", "fsdp.sharding_strategy"},
      "`" + std::string(Name(recipe.fsdp.sharding_strategy)) +
          "` shards over the ranks of each host, and hosts have " +
          std::to_string(hosts.SmallestHost()) + " to " + std::to_string(hosts.LargestHost()) +
          " of them: say how many ranks share a copy, one of " + DivisorsOf(hosts.size())));
}

// Elements of the largest matrices that fsdp.quantize may apply to; 0: there are none.
struct LargestMatrices {
  int64_t any = 0, trained = 0;
};
LargestMatrices LargestOf(const Layout& layout) {
  LargestMatrices largest;
  for (const FlatParameter& flat : layout.flat_parameters) {
    for (const Placement& p : flat.parameters) {
      if (!flat.dtypes.quantized || p.shape.rank() < 2) continue;
      largest.any = std::max(largest.any, p.size());
      if (!flat.frozen) largest.trained = std::max(largest.trained, p.size());
    }
  }
  return largest;
}

// Over `shards` ranks, `inside` of them on each host; 0: unequally many.
std::string HowGradientsAreSummed(int inside, int shards) {
  if (inside == 0) {
    return "gradients, quantised, are summed in one hop: the ranks that share a copy are unequally "
           "many on their hosts";
  }
  if (inside == 1 || inside == shards) {
    return "gradients, quantised, are summed in one hop, over " + std::to_string(shards) + " ranks";
  }
  return "gradients, quantised, are summed in two hops: over " + std::to_string(inside) +
         " ranks of each host, then over " + std::to_string(shards / inside) + " hosts";
}

}  // namespace

int ThreadsFor(const Recipe& recipe, int local_world, int sharers) {
  if (recipe.run.threads > 0) return static_cast<int>(recipe.run.threads);
  const std::optional<int> quota = MemoryLimits().Cores();
  const int threads = AvailableCores() / sharers;
  return std::max(1, quota ? std::min(threads, *quota / local_world) : threads);
}

std::string WhyCrowded(const Recipe& recipe, int local_world) {
  using Device = RunRecipe::Device;
  const bool on_cpu = recipe.run.device == Device::kCpu ||
                      (recipe.run.device == Device::kAuto && FindGpus().visible.empty());
  const int cores = AvailableCores();
  if (!on_cpu || local_world <= cores) return "";
  return std::to_string(local_world) + " ranks on " + Counted(cores, "core") +
         ": ranks that share a core take turns, so more ranks than cores make no step shorter";
}

ModelShape ShapeFor(const Recipe& recipe) {
  const auto shape_of = [&] {
    if (!recipe.model.init_from) return ShapeOf(recipe.model);
    const FoundShape found = FindShape(recipe);
    return ShapeOf(recipe, found.shape, found.where.directory);
  };
  ModelShape shape = shape_of();
  shape.family().SetTargetLength(shape, recipe.data.TargetLength());
  shape.family().CutBlocks(shape, CutOf(recipe.fsdp.auto_wrap));
  return shape;
}

void CheckExpertLoad(const ModelShape& shape, double load) {
  const std::optional<MixtureShape> mixture = shape.family().Mixture(shape);
  if (!mixture) throw ConfigError("--expert-load: the model has no experts");
  const std::string k = std::to_string(mixture->experts_per_token);
  const std::string n = std::to_string(mixture->experts);
  const double most =
      static_cast<double>(mixture->experts) / static_cast<double>(mixture->experts_per_token);
  if (load >= 1 && load <= most) return;
  throw ConfigError("--expert-load: want a number from 1 to " + n + " / " + k +
                    ": a token chooses " + k + " of " + n + " experts, each once");
}

std::shared_ptr<Model> BuildModel(const Recipe& recipe, const ModelShape& shape) {
  std::shared_ptr<Model> model = MakeModel(shape);
  recipe.Refuse(AdaptAndFreeze(recipe, model));
  return model;
}

namespace {

// `from`: the files that the weights come from.
std::optional<ShapeConflict> FrozenHead(const Recipe& recipe, const WeightsPath& from,
                                        const Model& model) {
  HeadToDraw to_draw;
  try {
    to_draw = FindHeadToDraw(ShapeFor(recipe), from);
  } catch (const CheckpointError&) {  // The run says it.
  }
  const ModelHead& head = to_draw.head;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      if (!head.Has(p->name()) || p->trainable()) continue;
      const bool lora = recipe.model.lora.has_value();
      const std::string why = to_draw.is_missing ? "model.init_from has no head, so `"
                                                 : "is not that of model.init_from, so `";
      const std::string key = to_draw.is_missing ? "init_from" : std::string(head.field);
      return ShapeConflict{
          {"model." + key},
          why + p->name() + "` is drawn anew, and " +
              (lora ? "model.lora trains adapters alone" : "optimizer.groups freezes it") +
              (to_draw.is_missing ? ": " : ": keep that of the weights, or ") +
              (lora ? "name it in model.lora.full" : "leave the head out of what is frozen")};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<ShapeConflict> BatchNormConflicts(const Recipe& recipe, const Model& model, int world) {
  const TrainRecipe& train = recipe.train;
  const bool sync = train.batch_norm == TrainRecipe::BatchNorm::kSync;
  const int64_t samples = train.micro_batch_size * (sync ? world : 1);
  if (model.fewest_normed_pixels() * samples != 1) return {};
  return {{{"train.micro_batch_size"},
           "a batch norm would be over one value, whose variance is 0: behind the last stage the "
           "model's images have 1 pixel, and a micro-batch has 1 sample. Want 2 samples or more, "
           "larger images, or train.batch_norm: sync on several ranks"}};
}

std::vector<ShapeConflict> ModelMistakes(const Recipe& recipe) {
  std::vector<ShapeConflict> mistakes;
  std::optional<ModelShape> shape;
  WeightsPath where = "";
  if (recipe.model.init_from) {
    try {
      FoundShape found = FindShape(recipe);
      shape = found.shape;
      where = std::move(found.where);
    } catch (const Error&) {
      return {};  // No mistake of the recipe: the run says it, with an exit code of its own.
    }
    mistakes = Disagreements(recipe, *shape, where.directory);
    for (ShapeConflict& mistake : mistakes) {
      if (mistake.keys[0] != "model.tie_word_embeddings") continue;
      for (const std::string& note : InitialNotes(where)) mistake.message += "; " + note;
    }
  } else {
    shape = ShapeOf(recipe.model);  // Judged with the recipe.
  }
  std::shared_ptr<Model> model = MakeModel(SmallestAlike(*shape));
  for (ShapeConflict& mistake : AdaptAndFreeze(recipe, model)) {
    mistakes.push_back(std::move(mistake));
  }
  if (recipe.model.init_from && mistakes.empty()) {
    if (auto frozen = FrozenHead(recipe, where, *model)) mistakes.push_back(std::move(*frozen));
  }
  return mistakes;
}

SessionOptions SessionOptionsFor(const Recipe& recipe, const HostPlacement& hosts, int threads) {
  SessionOptions options;
  ExecutorOptions& e = options.executor = {recipe.fsdp};
  e.recompute = recipe.train.activation_checkpointing;
  e.activation_offload = recipe.train.activation_offload;
  e.batch_norm_sync = recipe.train.batch_norm == TrainRecipe::BatchNorm::kSync;
  const RouterRecipe& router = recipe.train.router;
  e.balance = {.aux_loss = router.aux_loss.value_or(0),
               .z_loss = router.z_loss,
               .scope = router.aux_scope,
               .bias_rate = router.bias_rate.value_or(0)};
  e.micro_batch_size = recipe.train.micro_batch_size;
  e.sample_length = recipe.data.seq_len;
  e.documents = recipe.data.SeparatesDocuments();
  if (IsHybrid(e.sharding_strategy) && !e.shard_size) e.shard_size = RanksOfEachHost(recipe, hosts);
  CheckReshard(recipe, IsHybrid(e.sharding_strategy) ? *e.shard_size : hosts.size());
  if (e.sharding_strategy != Strategy::kNoShard) {
    e.inside = hosts.Together(MeshFor(e, /*rank=*/0, hosts.size()).shard_size());
  }
  const int64_t wave =
      recipe.train.micro_batch_size * MeshFor(e, /*rank=*/0, hosts.size()).data_size();
  e.micro_batches = static_cast<int>((recipe.train.global_batch_size + wave - 1) / wave);
  e.max_norm = static_cast<float>(recipe.train.grad_clip);
  e.threads = threads;
  e.memory_limit = recipe.run.memory_limit;
  e.state_dtype = recipe.optimizer.state_dtype;
  for (const GroupRecipe& g : recipe.optimizer.groups) {
    e.state_choices.push_back({g.match, g.state_dtype});
  }

  options.global_batch_size = recipe.train.global_batch_size;
  options.data_threads = static_cast<int>(recipe.data.threads);
  options.eval = recipe.eval.every > 0;
  options.generate = recipe.eval.every > 0 && recipe.eval.sample.has_value();
  if (recipe.train.ema) options.optimizer.ema = recipe.train.ema->decay;
  options.eval_ema = recipe.eval.ema;
  options.snapshot = recipe.checkpoint.async &&
                     (recipe.checkpoint.every.value_or(0) > 0 || recipe.checkpoint.every_minutes);
  const OptimizerRecipe& o = recipe.optimizer;
  options.optimizer.seed = recipe.run.seed;
  options.optimizer.kind = o.name;
  options.optimizer.beta1 = o.betas[0];
  options.optimizer.beta2 = o.betas[1];
  options.optimizer.eps = o.eps;
  options.optimizer.momentum = o.momentum;
  options.optimizer.weight_decay = o.weight_decay;
  if (o.table_lr && o.lr > 0) options.optimizer.table_lr_scale = *o.table_lr / o.lr;
  options.optimizer.groups = GroupsOf(recipe);
  options.optimizer.muon = o.muon;
  options.optimizer.adafactor = o.adafactor;
  e.factored = o.name == OptimizerKind::kAdafactor;
  e.whole = WholeRuleOf(options.optimizer);
  options.lr = LrScheduleFor(recipe);
  return options;
}

std::vector<std::string> WhatIsQuantized(const Recipe& recipe, const Model& model,
                                         const SessionOptions& options,
                                         const HostPlacement& hosts) {
  std::vector<std::string> lines;
  if (hosts.size() == 1) return lines;
  const FsdpOptions::Quantize& quantize = options.executor.quantize;
  const int shards = MeshFor(options.executor, /*rank=*/0, hosts.size()).shard_size();
  const LargestMatrices largest = LargestOf(LayoutFor(options.executor, model, shards));
  // Whether it is in vain.
  const auto says = [&](const char* what, const char* which, int64_t most) {
    if (shards == 1) {
      lines.push_back(std::string(what) +
                      ": each rank has a copy of its own, so nothing is quantised");
    } else if (most < quantize.min_size) {
      lines.push_back(recipe.Mistake(
          "fsdp.quantize.min_size",
          std::string(what) + ": nothing is quantised, because no " + which +
              " outside keep_fp32 has " + Counted(quantize.min_size, "element") +
              (most > 0 ? "; the largest has " + std::to_string(most) : std::string())));
    }
    return shards == 1 || most < quantize.min_size;
  };
  if (quantize.gather != FsdpOptions::Quantize::Gather::kNone) {
    says("gathers", "matrix", largest.any);
  }
  if (quantize.reduce != FsdpOptions::Quantize::Reduce::kNone &&
      !says("gradients", "matrix that trains", largest.trained)) {
    lines.push_back(HowGradientsAreSummed(options.executor.inside, shards));
  }
  return lines;
}

LrSchedule LrScheduleFor(const Recipe& recipe) {
  const ScheduleRecipe& s = recipe.schedule;
  const int64_t steps = recipe.train.steps;
  LrSchedule lr;
  lr.shape = s.name;
  lr.lr = recipe.optimizer.lr;
  lr.warmup_steps = std::min(s.warmup_steps, steps);
  lr.steps = steps;
  lr.min_lr_ratio = s.min_lr_ratio;
  lr.decay_steps = s.decay_steps.value_or(std::min((steps + 9) / 10, steps - lr.warmup_steps));
  lr.decay = s.decay;
  return lr;
}

}  // namespace fsdp
