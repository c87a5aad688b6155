#include "trainer/loop/evaluate.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>
#include <variant>

#include "models/shape.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/json.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/read_file.h"
#include "trainer/core/terminal.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/fsdp/executor.h"
#include "trainer/loop/chosen_checkpoint.h"
#include "trainer/loop/complete_recipe.h"
#include "trainer/loop/evaluator.h"
#include "trainer/loop/failure_protocol.h"
#include "trainer/loop/initialize.h"
#include "trainer/loop/predictions.h"
#include "trainer/loop/rank_session.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/setup.h"
#include "trainer/nn/model.h"
#include "trainer/observe/metrics.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/weights/hf_hints.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

std::string LoraText(const std::optional<LoraOptions>& lora) {
  if (!lora) return "null";
  return recipe::YamlValue(JsonTree::Object({{"rank", lora->rank},
                                             {"alpha", lora->alpha},
                                             {"targets", lora->targets},
                                             {"dropout", lora->dropout},
                                             {"full", lora->full},
                                             {"base", Name(lora->base)},
                                             {"base_scales", Name(lora->base_scales)},
                                             {"base_exclude", lora->base_exclude}}));
}

// No step is trained: state of training alone is neither planned nor read.
void EvaluateAlone(Recipe& recipe, bool full) {
  recipe.train.activation_checkpointing = Recompute::kNone;
  recipe.train.activation_offload = ActivationOffload::kNone;
  recipe.train.ema.reset();
  recipe.checkpoint.async = false;
  recipe.checkpoint.every.reset();
  recipe.eval.every = 1;
  recipe.eval.ema = false;
  recipe.eval.sample.reset();
  recipe.train.epochs.reset();
  recipe.train.steps = 1;
  if (full) recipe.eval.steps = std::numeric_limits<int32_t>::max();
  FsdpOptions& fsdp = recipe.fsdp;
  fsdp.reshard_after_forward.reset();
  fsdp.cpu_offload.optimizer = false;
  fsdp.cpu_offload.spill.reset();
  fsdp.fake_all_gather = fsdp.fake_reduce = false;
  // Averaged weights are fp32. A run rounds them once when it gathers them.
  fsdp.mixed_precision.master_dtype = DType::kFloat32;
}

void RequirePredictions(const Recipe& recipe) {
  const ModelShape shape = ShapeFor(recipe);
  if (MakeModel(shape)->predictions() > 0) return;
  throw ConfigError("--predictions: a `" + std::string(FamilyOf(shape)) +
                    "` predicts tokens; predictions are of images and clicks");
}

class Evaluating {
 public:
  Evaluating(const Evaluation& evaluation, ResolvedRun run, const Job& job)
      : evaluation_(evaluation), job_(job), rank_(std::move(run), job) {}

  ExitCode Run() {
    try {
      Begin();
      Evaluate();
      return ExitCode::kDone;
    } catch (const std::exception& error) {
      EndingHooks hooks;
      hooks.where = [this] { return Where(); };
      hooks.abort = [this](const std::string& why) { rank_.Abort(why); };
      hooks.give_up = [](const std::exception&) { return nullptr; };
      hooks.record_stop = [] {};
      hooks.record_failure = [](const std::string&) {};
      EndRun(job_, error, hooks);
    }
  }

 private:
  std::string Where() const {
    std::string at = rank_.Where();
    return at.empty() ? stage_ : at;
  }

  void Begin() {
    stage_ = "the agreement on recipe, schedule, build and data";
    Agree(*job_.store, "start", job_.rank, job_.world, LabelsOf(rank_.run()));
    rank_.Open({}, [](std::string_view) {});
    if (!evaluation_.predictions.empty()) {
      EveryRank(job_, "predictions", [&] {
        if (job_.rank == 0) file_.emplace(evaluation_.predictions, WriteTo::kPipeToo);
      });
    }
    stage_ = "the weights";
    WeightSource weights;
    EveryRank(job_, "weights", [&] { weights = ReadWeights(); });
    InitializeBase(weights, job_, rank_.executor());
    stage_ = "the beginning of a batch";
  }

  // Leaves out those of a base.
  WeightSource ReadWeights() {
    const std::string& from = evaluation_.checkpoint;
    WeightSource opened =
        evaluation_.ours
            ? OpenStoredWeights(std::make_unique<CheckpointReader>(from), evaluation_.averaged)
            : OpenInitialWeights(evaluation_.recipe.model);
    WeightSource read = RequireFinite(std::move(opened), "--checkpoint: " + from, "told");
    rank_.executor().Initialize(read.parameters, read.buffers, read.rows);
    rank_.executor().Synchronize();
    return read;
  }

  void Evaluate() {
    std::vector<std::string> sets;
    std::string table;
    std::optional<Predictions> predictions = MakePredictions();
    const EvalMetric* const metric = rank_.session().eval_metric();
    const std::string heading = metric != nullptr ? metric->name : "";
    const int width = heading.empty() ? 0 : std::max(12, static_cast<int>(heading.size()) + 1);
    for (const RunData::Valid& valid : rank_.data().valid) {
      const EvalMeans means = *MeansOf(rank_.session(), *valid.loader, /*stop=*/nullptr,
                                       [&](int64_t batch) { Tell(valid, batch); });
      const EvalRecord record{
          .loss = means.loss, .name = valid.name, .metric = metric, .mean = means.second};
      Tell(valid, 0);
      if (!std::isfinite(record.loss)) {
        throw Error(ExitCode::kNotFinite, "the loss of " + NameOf(valid) + " is not finite");
      }
      if (evaluation_.on_loss) evaluation_.on_loss(record.loss);
      const int64_t tokens = valid.loader->Targets();
      JsonObject set = JsonObject().Add("name", valid.name).Add("loss", record.loss);
      if (metric != nullptr) set.Add(metric->name, record.Value());
      std::optional<double> auc;
      if (predictions) {
        auc = predictions->Write(valid.name, *valid.loader,
                                 [&](int64_t batch) { Tell(valid, batch); });
        Tell(valid, 0);
        if (auc) set.Add("auc", *auc);
      }
      sets.push_back(set.Add("tokens", tokens).Text());
      char row[160];
      std::snprintf(row, sizeof(row), "%-24s %10s %*s %10s\n", NameOf(valid).c_str(),
                    FixedPoint(record.loss, 4).c_str(), width, TextOfValue(record).c_str(),
                    HumanCount(static_cast<double>(tokens)).c_str());
      table += row;
      if (auc) table += NameOf(valid) + ": AUC " + FixedPoint(*auc, 4) + "\n";
    }
    if (file_) {
      file_->Commit();
      table +=
          evaluation_.predictions + ": " + Counted(predictions->samples(), "prediction") + "\n";
    }
    if (job_.rank == 0 && job_.console != nullptr) Print(sets, table, heading, width);
  }

  void Print(const std::vector<std::string>& sets, const std::string& table,
             const std::string& heading, int width) const {
    const ResolvedRun& run = rank_.run();
    const bool of_samples = run.model->Inputs(run.options.executor.sample_length).targets == 1;
    const std::optional<int64_t>& step = evaluation_.step;
    if (evaluation_.json) {
      *job_.console << JsonObject()
                           .Add("checkpoint", evaluation_.checkpoint)
                           .Add("step", step)
                           .Add("averaged", evaluation_.averaged)
                           .Add("world_size", job_.world)
                           .AddRaw("sets", JsonArray(sets))
                           .Text()
                    << std::endl;
      return;
    }
    const int64_t parameters = NumParameters(run.shape);
    if (!evaluation_.note.empty()) *job_.console << Printable(evaluation_.note) << "\n";
    *job_.console << Printable(evaluation_.checkpoint) << ": "
                  << (step ? "step " + std::to_string(*step) + ", " : "")
                  << HumanCount(static_cast<double>(parameters)) << " parameters"
                  << (evaluation_.averaged ? ", averaged" : "") << "\n";
    char head[160];
    std::snprintf(head, sizeof(head), "%-24s %10s %*s %10s\n", "set", "loss", width,
                  heading.c_str(), of_samples ? "samples" : "tokens");
    *job_.console << head << Printable(table) << std::flush;
  }

  std::optional<Predictions> MakePredictions() {
    std::optional<Predictions> predictions;
    if (evaluation_.predictions.empty()) return predictions;
    const ResolvedRun& run = rank_.run();
    predictions.emplace(rank_.session(), run.model->Inputs(run.options.executor.sample_length),
                        rank_.data().classes, *job_.store, file_ ? &*file_ : nullptr);
    return predictions;
  }

  static std::string TextOfValue(const EvalRecord& record) {
    if (record.metric == nullptr) return "";
    const std::optional<double> value = record.Value();
    char text[24] = "-";
    if (value) std::snprintf(text, sizeof(text), "%.6g", *value);
    return text;
  }

  static std::string NameOf(const RunData::Valid& valid) {
    return valid.name.empty() ? "data.valid" : valid.name;
  }

  // Shows on a terminal how far the evaluation is; 0: takes the line away. Throws EarlyStop where a
  // stop is asked for.
  void Tell(const RunData::Valid& valid, int64_t batch) const {
    if (job_.stop_requested && job_.stop_requested()) throw EarlyStop();
    if (job_.rank != 0 || job_.console == nullptr || !IsTerminal(STDERR_FILENO)) return;
    std::fputs("\r\x1b[K", stderr);
    if (batch > 0) {
      std::fprintf(stderr, "%s: %lld of %lld batches", Printable(NameOf(valid)).c_str(),
                   static_cast<long long>(batch), static_cast<long long>(valid.loader->Batches()));
    }
    std::fflush(stderr);
  }

  const Evaluation& evaluation_;
  const Job& job_;
  RankSession rank_;
  std::optional<AtomicFile> file_;   // Rank 0's predictions.
  std::string stage_ = "the start";  // The host's present work, for messages.
};

}  // namespace

Evaluation PrepareEvaluation(const EvaluationFlags& flags) {
  Evaluation evaluation;
  evaluation.json = flags.json;
  evaluation.predictions = flags.predictions;
  evaluation.ours = !IsOfHuggingFace(flags.checkpoint);
  evaluation.checkpoint = flags.checkpoint;
  std::vector<std::string> overrides = flags.overrides;
  CheckpointMeta meta;
  Recipe trained;
  if (evaluation.ours) {
    RefuseWhatIsNoCheckpoint(flags.checkpoint);
    const ChosenCheckpoint chosen = ChooseCheckpoint(flags.checkpoint, flags.latest);
    evaluation.note = chosen.note;
    evaluation.checkpoint = ResolveCheckpoint(chosen.path);
    meta = ReadCheckpointMeta(evaluation.checkpoint);
    evaluation.step = meta.step;
    const std::string name = evaluation.checkpoint + "/manifest.json, recipe";
    if (!meta.recipe.empty()) trained = ParseRecipe({{name, meta.recipe}});
  }
  if (!flags.by.empty()) meta = ReadCheckpointMeta(flags.by);
  const std::string& from = evaluation.checkpoint;
  for (const std::string& forced :
       {"model.init_from=" + recipe::YamlValue(from), "model.lora=" + LoraText(trained.model.lora),
        std::string("checkpoint.resume=none")}) {
    overrides.push_back(forced);
  }
  if (evaluation.ours) overrides.emplace_back("model.base=null");  // Merged when the run began.
  if (!flags.config.empty()) {
    evaluation.recipe = LoadRecipe(flags.config, overrides, ModelMistakes, CompleteRecipe);
  } else if (!meta.recipe.empty()) {
    evaluation.recipe = ParseRecipe({{from + "/manifest.json, recipe", meta.recipe}}, overrides,
                                    ModelMistakes, CompleteRecipe);
  } else {
    throw ConfigError("eval: " + from + " does not say by which recipe: give --config");
  }
  Recipe& recipe = evaluation.recipe;
  evaluation.averaged = recipe.eval.ema;
  if (evaluation.averaged && !evaluation.ours) {
    throw ConfigError(recipe.Mistake(
        "eval.ema", from + " has no averaged weights: a Hugging Face directory has one set. Set "
                           "it to false"));
  }
  if (std::holds_alternative<std::monostate>(recipe.data.valid)) {
    throw ConfigError(recipe.Mistake(
        "data.valid", "null, so there is nothing to evaluate: give --set data.valid=..."));
  }
  if (!meta.recipe.empty()) recipe.run.seed = static_cast<int64_t>(meta.seed);
  EvaluateAlone(recipe, flags.full);
  if (!flags.predictions.empty()) RequirePredictions(recipe);
  return evaluation;
}

std::string ShardFor(int world, Recipe& recipe) {
  FsdpOptions& fsdp = recipe.fsdp;
  const Strategy strategy = fsdp.sharding_strategy;
  if (!fsdp.shard_size || strategy == Strategy::kNoShard) return "";
  const int64_t size = *fsdp.shard_size;
  const bool hybrid = IsHybrid(strategy);
  if (hybrid ? world % size == 0 : world == size) return "";
  const auto place = recipe.places.find("fsdp.shard_size");
  if (place != recipe.places.end() && place->second.starts_with("--set ")) return "";
  const bool keeps = strategy == Strategy::kHybridShardGradOp || strategy == Strategy::kShardGradOp;
  fsdp.sharding_strategy = keeps ? Strategy::kShardGradOp : Strategy::kFullShard;
  fsdp.shard_size.reset();
  return "evaluated with `" + std::string(Name(fsdp.sharding_strategy)) + "` over " +
         Counted(world, "rank") + ": the recipe's `" + std::string(Name(strategy)) +
         "` with fsdp.shard_size: " + std::to_string(size) + " is for " +
         (hybrid ? "a multiple of " : "") + Counted(size, "rank");
}

ExitCode EvaluateRank(const Evaluation& evaluation, const Job& job) {
  EarlyStopWatch watch(job);
  return RunRank(job, [&]() -> RankWork {
    // Where the output is read by a program, nothing else is in it.
    Place place = PlaceToEvaluate(job, /*silent=*/evaluation.json);
    place.predicts = !evaluation.predictions.empty();
    ResolvedRun run = Resolve(evaluation.recipe, place);
    RequireFit(run);
    auto evaluating = std::make_shared<Evaluating>(evaluation, std::move(run), job);
    return [evaluating] { return evaluating->Run(); };
  });
}

}  // namespace fsdp
