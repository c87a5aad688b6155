#include "trainer/loop/train.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/shape.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/engine/step_memory.h"
#include "trainer/engine/step_operations.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/step_position.h"
#include "trainer/loop/checkpointer.h"
#include "trainer/loop/data_watch.h"
#include "trainer/loop/evaluator.h"
#include "trainer/loop/failure_protocol.h"
#include "trainer/loop/initialize.h"
#include "trainer/loop/rank_session.h"
#include "trainer/loop/recorder.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/run_directory.h"
#include "trainer/loop/run_messages.h"
#include "trainer/loop/setup.h"
#include "trainer/loop/stop_agreement.h"
#include "trainer/nn/model.h"
#include "trainer/observe/chrome_trace.h"
#include "trainer/observe/throughput.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

class Trainer {
 public:
  Trainer(ResolvedRun run, const Job& job, EarlyStopWatch& watch)
      : job_(job),
        watch_(watch),
        loads_(job, run.model->Inputs(run.options.executor.sample_length)),
        rank_(std::move(run), job),
        run_(rank_.run()),
        recipe_(*run_.recipe),
        data_(rank_.data()),
        seed_(static_cast<uint64_t>(recipe_.run.seed)),
        held_out_(recipe_.data.valid),
        recorder_(recipe_, job),
        time_(job.rank == 0 ? job.ends : std::nullopt) {}

  ExitCode Run() {
    try {
      Begin();
      return Steps();
    } catch (const std::exception& error) {
      EndingHooks hooks;
      hooks.where = [this] { return Where(); };
      hooks.abort = [this](const std::string& why) { rank_.Abort(why); };
      hooks.give_up = [this](const std::exception& by) {
        return checkpointer_ ? checkpointer_->GiveUp(by) : nullptr;
      };
      hooks.record_stop = [this] { recorder_.Stopped(); };
      hooks.record_failure = [this](const std::string& reason) { recorder_.Failed(reason); };
      EndRun(job_, error, hooks);
    }
  }

 private:
  struct Pending {
    int64_t step, index, targets, tokens;  // index: the executor's count.
    TimeLimit::Clock::time_point issued = TimeLimit::Clock::now();
  };

  // Everything before the first step that involves other ranks or the disk.
  void Begin() {
    stage_ = "the agreement on recipe, schedule, build and data";
    Agree(*job_.store, "start", job_.rank, job_.world, LabelsOf(run_));
    stage_ = "the run directory";
    start_ =
        OpenRunDirectory(recipe_, data_.files, *job_.store, job_.rank, job_.world,
                         job_.restart > 0 ? RunLock::kPatienceAfterRestart : RunLock::kPatience);
    RequireRealToResume();
    recorder_.OpenLog(start_.directory);
    rank_.Open(HeldChoices(), [this](std::string_view line) { recorder_.Line(Printable(line)); });
    checkpointer_.emplace(recipe_, job_, start_.directory, session(), recorder_);
    stage_ = "the initial weights";
    if (start_.resume_from.empty()) {
      base_ = InitializeWeights(recipe_, run_.shape, job_, seed_, session(), recorder_);
    } else {
      Resume();
    }
    begun_ = step_;
    evaluator_.emplace(recipe_, seed_, data_, loads_, session(), recorder_);
    const MemoryPlan& memory = run_.plan.memory;
    std::vector<std::string> chosen =
        WhatIsQuantized(recipe_, *run_.model, run_.options, run_.hosts);
    for (const ChoiceId id : {ChoiceId::kBlocks, ChoiceId::kConvolution, ChoiceId::kAttention}) {
      chosen.insert(chosen.begin(), run_.Of(id).line);
    }
    recorder_.Begin(
        start_, aside_, step_,
        {run_.threads, seed_, &held_out_, NumParameters(run_.shape),
         executor().layout().NumTrained(), run_.plan.planned(),
         memory.bytes() - memory.bytes(MemoryPlace::kDevice), memory.bytes(MemoryPlace::kDisk),
         &data_, run_.Of(ChoiceId::kAttention).value, chosen, rank_.TakenOfTheGpu()});
    if (const auto& line = run_.Of(ChoiceId::kTransport).line; !line.empty()) recorder_.Line(line);
    watch_.End();
    stops_.emplace(job_, step_, time_, [this](const AgreedStop& at) { recorder_.Stopping(at); });
    stage_ = "the beginning of a step";
  }

  // This rank's present work: the streams', where they have any, otherwise the host's.
  std::string Where() const {
    if (std::string at = rank_.Where(); !at.empty()) return at;
    return stage_ + (step_ > 0 ? ", after step " + std::to_string(step_) : "");
  }

  Session& session() { return rank_.session(); }
  Executor& executor() { return rank_.executor(); }

  // Every rank has the same recipe and the same directory.
  void RequireRealToResume() {
    if (!recipe_.fsdp.fake() || start_.resume_from.empty()) return;
    const ConfigError error(
        recipe_.Mistake(std::vector<std::string>{"fsdp.fake_all_gather", "fsdp.fake_reduce"},
                        "makes weights of no meaning, and there is " + start_.resume_from +
                            " to go on from: give run.dir another directory"));
    const bool reports = ClaimReport(*job_.store, "start/fake", job_.rank, job_.world, error);
    if (!reports) throw ReportedElsewhere(error);
    throw ConfigError(error);
  }

  RankSession::Held HeldChoices() const {
    if (!recipe_.run.deterministic || start_.resume_from.empty()) return {};
    return {start_.resume_from, ReadCheckpointMeta(start_.resume_from).products};
  }

  void Resume() {
    executor().Synchronize();  // The optimizer's zeros are written.
    CheckpointMeta meta;
    EveryRank(job_, "load", [&] { meta = checkpointer_->Load(start_.resume_from); });
    base_ = ResumeBase(recipe_, job_, meta, start_.resume_from, executor(), recorder_);
    executor().MastersWritten();
    updates_ = meta.updates;
    skipped_ = meta.skipped;
    evaluation_ = meta.evaluation;
    evaluate_first_ = meta.evaluate_first;
    session().optimizer().SetUpdates(executor().compute(), updates_);
    session().optimizer().SetSeed(meta.seed);
    if (meta.scaler && run_.options.executor.mixed_precision.ScalesLoss()) {
      scaler_ = meta.scaler;
      executor().ResumeLossScaler({scaler_->scale, static_cast<float>(scaler_->good_steps)});
    }
    step_ = meta.step;
    tokens_ = meta.tokens;
    seed_ = meta.seed;
    // Only when all of the checkpoint has been found whole.
    EveryRank(job_, "aside", [&] {
      if (start_.goes_back) aside_ = GoBack(start_.directory, step_);
    });
    start_.hold = {};
    // Samples and their order stay those that the run began with.
    held_out_ = ParseRecipe({{start_.resume_from, meta.recipe}}).data.valid;
    if (seed_ != static_cast<uint64_t>(recipe_.run.seed) || held_out_ != recipe_.data.valid) {
      data_ =
          OpenData(recipe_, run_.shape, run_.mesh.data_size(), seed_, held_out_, ProgressFor(job_));
    }
  }

  double FlopsPerTarget() const {
    const int64_t length = run_.options.executor.sample_length;
    return FlopsPerSample(*run_.model, length) /
           static_cast<double>(run_.model->Inputs(length).targets);
  }

  ExitCode Steps() {
    ThroughputOptions throughput;
    throughput.clock = [this] { return rank_.device().Now(); };
    throughput.flops_per_target = FlopsPerTarget();
    throughput.devices = job_.world;
    throughput.peak_flops =
        PeakFlops(job_.device.name, run_.options.executor.mixed_precision.param_dtype);
    const bool planned = recipe_.fsdp.buffers == FsdpOptions::Buffers::kSlots;
    if (planned && !recipe_.log.trace_steps.empty()) {
      traced_memory_.emplace(*run_.model, run_.options, job_.world, run_.target.device);
    }
    recorder_.StartClock(throughput, step_, tokens_);
    const int64_t last = recipe_.train.steps;
    if (evaluate_first_) TakeUpEvaluation();
    if (step_ >= last && !stopping_) {
      recorder_.NothingToDo(step_);
      return Finish("done", ExitCode::kDone);
    }
    if (NoBetter()) {
      recorder_.Line(WhyNoBetter() +
                     ". More of it: --set eval.stop_after=null; another run: --set "
                     "run.name=...");
      return Finish("done", ExitCode::kDone, WhyNoBetter());
    }
    while (step_ < last && !stopping_ && !NoBetter()) {
      if (pending_.size() == 2) TakeResult();
      if (stopping_) break;
      checkpointer_->Poll();
      if (saving_) Save();
      const int64_t step = step_ + 1;
      if (!MayBegin(step)) break;
      const bool traced = IsTraced(step);
      if (traced) StartTrace();
      IssueStep(step);
      if (traced) WriteTrace(step);
      if (evaluator_->IsDue(step)) {
        Evaluate(step);
        if (stopping_) break;
      }
      if (checkpointer_->IsDue(step)) Save();
    }
    const std::optional<AgreedStop> stop = stops_->End();
    Drain();
    checkpointer_->Finish();
    if (DataHasFailed(stop)) EndByData();
    const bool early = stopping_ && (step_ < last || evaluate_first_) && !NoBetter();
    const bool saves = recipe_.checkpoint.every && NoBetter();  // As the last step would.
    if ((early || saving_ || saves || stop) && checkpointer_->saved_step() != step_) Save();
    if (early) {
      const std::string on = "the run can go on from " + start_.directory.checkpoints() + "/" +
                             StepName(checkpointer_->saved_step());
      recorder_.Line("stopped after step " + std::to_string(step_) + ": " +
                     (recipe_.fsdp.fake() ? "there is no checkpoint to go on from" : on));
      return Finish("stopped", ExitCode::kStopped);
    }
    const std::string why = step_ < last ? WhyNoBetter() : "";
    if (!why.empty()) recorder_.Line(why);
    if (checkpointer_->saved_step() != step_) checkpointer_->RequireFinite(step_);
    return Finish("done", ExitCode::kDone, why);
  }

  bool DataHasFailed(const std::optional<AgreedStop>& stop) {
    if (loads_.known()) return true;
    // Perhaps behind the last step, so that no step has shown it.
    return stop && stop->cause == StopCause::kOther && loads_.HasFailed("the stop");
  }

  [[noreturn]] void EndByData() {
    loads_.End([this] {
      if (recipe_.checkpoint.every || recipe_.checkpoint.every_minutes) Save();
      const int64_t saved = checkpointer_->saved_step();
      return saved < 0 ? "" : start_.directory.checkpoints() + "/" + StepName(saved);
    });
  }

  // Whether all ranks begin the next pass, with or behind `step`; false on all where on one.
  //
  // A save that failed fails on all ranks (where a device has failed the run ends), but they need
  // not know it at the same step: they stop together, and each then finds out why.
  bool MayBegin(int64_t step) {
    const bool begun = stops_->passes() > 0;
    if (begun && (checkpointer_->failed() || recorder_.LostItsReader() || loads_.failed())) {
      stops_->Ask(StopCause::kOther);
    }
    if (stops_->Begin(step)) return true;
    if (!begun) throw EarlyStop();
    stopping_ = true;
    return false;
  }

  void IssueStep(int64_t step) {
    const bool asked = job_.take_save_request && job_.take_save_request();
    const bool save = (job_.rank == 0 && checkpointer_->WantsByTime()) || asked;
    if (job_.take_report_request && job_.take_report_request()) {
      recorder_.Report("rank " + std::to_string(job_.rank) + " is about to enqueue step " +
                       std::to_string(step) + ", " + std::to_string(pending_.size()) +
                       " steps are in the air; it stands at " + Where());
    }
    const int64_t targets = data_.train->TargetsOfStep(step);
    const auto load = [this](int64_t of) {
      return [&loads = loads_, &data = *data_.train, rank = run_.mesh.data_coordinate(), of](
                 int m, const Batch& batch) {
        loads.Load(batch, [&] { data.MicroBatch(of, m, rank, batch); });
      };
    };
    session().Train(step, targets, save, load(step),
                    step == recipe_.train.steps ? Session::Load(nullptr) : load(step + 1));
    const int64_t tokens = job_.rank == 0 ? data_.train->InputTokensOfStep(step) : 0;  // Recorded.
    pending_.push_back({step, executor().steps() - 1, targets, tokens});
    step_ = step;
  }

  // The oldest step that is still in the air: blocks until it is done.
  void TakeResult() {
    const Pending pending = pending_.front();
    pending_.pop_front();
    const StepScalars result = executor().Result(pending.index);
    time_.StepEnded(pending.issued, checkpointer_->save_seconds());
    if (!std::isfinite(result.coefficient) &&
        loads_.HasFailed("step " + std::to_string(pending.step))) {
      step_ = std::min(step_, pending.step - 1);  // It has changed nothing, nor will those behind.
      stopping_ = true;
      return;
    }
    tokens_ += pending.targets;
    recorder_.Step(pending.step, result, executor().Account(pending.index),
                   {tokens_, pending.tokens}, run_.options.lr.At(pending.step));
    if (const GemmLibrary* products = rank_.products(); pending.index == 0 && products != nullptr) {
      recorder_.ProductsRefused(products->Refusals());
    }
    if (result.loss_scale > 0) {
      scaler_ = {result.scaler.scale, static_cast<int64_t>(result.scaler.good_steps)};
    }
    if (std::isfinite(result.coefficient)) {
      ++updates_;
    } else {
      TakeSkipped(pending.step, result);
    }
    if (result.save > 0) saving_ = true;
  }

  // Takes the result of a step that changed nothing. Throws where the run may not have another such
  // step.
  void TakeSkipped(int64_t step, const StepScalars& result) {
    const double least = recipe_.fsdp.mixed_precision.scaler.min_scale;
    const bool free = result.loss_scale > least;
    SkippedRecord record{step, "loss or gradient not finite"};
    if (result.loss_scale > 0) record.loss_scale = result.loss_scale;
    if (!free) ++skipped_;
    const int64_t most = recipe_.train.max_skipped_steps;
    const bool ends = skipped_ > most && !free;
    // The save under way is from before: it is good, or where it all began.
    if (ends) checkpointer_->Finish();
    recorder_.Write(record);
    if (!ends) return recorder_.Line(ChangedNothing(record, result.scaler.scale));
    // Every rank comes here at this step; who ends first takes the store with it.
    BeforeAllThrow(*job_.store, "train/not finite", job_.rank, job_.world);
    throw Error(ExitCode::kNotFinite,
                WhyNotFinite(step, result.loss, result.grad_norm, skipped_, most) + "; " +
                    GoesOnFrom(recipe_));
  }

  // Where the run stops before or in the evaluation, no rank goes on with it.
  void Evaluate(int64_t step) {
    Drain();
    if (loads_.known()) return;
    stage_ = "the evaluation of step " + std::to_string(step);
    std::optional<double> loss;
    if (!stopping_) loss = evaluator_->Run(step, [this, step] { return MayBegin(step); });
    stage_ = "the beginning of a step";
    evaluate_first_ = !loss;
    stopping_ = stopping_ || !loss;
    if (loss) TakeEvaluation(step, *loss);
  }
  // Makes up for the evaluation that a stop has cut short. Its loss is the checkpoint's as well.
  void TakeUpEvaluation() {
    evaluate_first_ = evaluator_->IsDue(step_);
    if (!evaluate_first_) return;
    Evaluate(step_);
    if (!evaluate_first_) Save();
  }

  void TakeEvaluation(int64_t step, double loss) {
    evaluated_ = step;
    if (evaluation_) evaluation_->loss.reset();
    if (!std::isfinite(loss)) {
      if (evaluation_) ++evaluation_->since_best;
    } else if (!evaluation_ || loss < evaluation_->best) {
      evaluation_ = {loss, loss, 0};
    } else {
      evaluation_->loss = loss;
      ++evaluation_->since_best;
    }
  }

  // Whether eval.stop_after ends the run: alike on all ranks, which have the same losses.
  bool NoBetter() const {
    const std::optional<int64_t> most = recipe_.eval.stop_after;
    return most && evaluation_ && evaluation_->since_best >= *most;
  }
  std::string WhyNoBetter() const {
    return "step " + std::to_string(step_) + " is the last: the best evaluation, " +
           FixedPoint(evaluation_->best, 4) + ", was " + std::to_string(evaluation_->since_best) +
           " evaluations ago (eval.stop_after)";
  }

  void Drain() {
    while (!pending_.empty()) TakeResult();
  }

  void Save() {
    if (recipe_.fsdp.fake()) {  // Weights of no meaning.
      saving_ = false;
      return;
    }
    Drain();
    if (loads_.known() && (step_ == begun_ || step_ == checkpointer_->saved_step())) return;
    stage_ = "saving the checkpoint of step " + std::to_string(step_);
    saving_ = false;  // Whoever asked until now gets this one.
    Recipe begun = recipe_;
    begun.run.seed = static_cast<int64_t>(seed_);
    begun.data.valid = held_out_;
    CheckpointMeta meta{step_,      tokens_, seed_, PrintRecipe(begun), ShapeToJson(run_.shape),
                        data_.files};
    meta.updates = updates_;
    meta.skipped = skipped_;
    meta.scaler = scaler_;
    meta.evaluation = evaluation_;
    if (meta.evaluation && evaluated_ != step_) meta.evaluation->loss.reset();
    meta.base = base_;
    meta.evaluate_first = evaluate_first_;
    meta.products = run_.Of(ChoiceId::kAlgorithms).value;
    meta.classes = data_.classes;
    checkpointer_->Save(meta, /*last=*/stopping_ || NoBetter() || step_ >= recipe_.train.steps);
    stage_ = "the beginning of a step";
  }

  bool IsTraced(int64_t step) const {
    const std::vector<int64_t>& steps = recipe_.log.trace_steps;
    return std::find(steps.begin(), steps.end(), step) != steps.end();
  }
  void StartTrace() {
    Drain();  // Otherwise the time of the steps in the air would count as this one's.
    executor().Synchronize();
    rank_.device().StartTrace();
  }
  void WriteTrace(int64_t step) {
    Drain();
    executor().Synchronize();
    RankTrace trace{.spans = rank_.device().TakeTrace()};
    trace.part = [this](uint64_t tag) {
      const StepPosition at = PositionOf(tag);
      return PartOf(at, executor().schedule(at.mode), executor().layout());
    };
    if (traced_memory_) trace.memory = traced_memory_->Over(trace.spans, run_.plan.planned());
    recorder_.WriteTrace(step, std::move(trace));
  }

  ExitCode Finish(const char* reason, ExitCode code, const std::string& early = "") {
    stops_->End();
    executor().Synchronize();
    recorder_.Finish(reason, step_, early);
    stage_ = "the end of the run";
    Barrier(*job_.store, "end", job_.rank, job_.world);
    return code;
  }

  const Job& job_;
  EarlyStopWatch& watch_;
  DataWatch loads_;  // Before rank_, whose streams call it.
  RankSession rank_;
  // rank_'s.
  const ResolvedRun& run_;
  const Recipe& recipe_;
  RunData& data_;
  // Those that the run began with: a resume does not change them.
  uint64_t seed_;
  ValidRecipe held_out_;
  RunStart start_;  // Holds the run directory's lock for all that follow.
  SetAside aside_;  // Rank 0's.
  Recorder recorder_;
  std::optional<Checkpointer> checkpointer_;
  std::optional<Evaluator> evaluator_;
  std::optional<StepMemory> traced_memory_;  // Empty: no step is traced, or memory is not planned.

  std::string stage_ = "the start";  // The host's present work, for messages.
  int64_t step_ = 0, begun_ = 0;     // Issued; before this start's first one.
  int64_t tokens_ = 0;               // Target tokens of the steps whose results have been read.
  // After the same steps: further numbers for a checkpoint.
  int64_t updates_ = 0, skipped_ = 0;
  std::optional<CheckpointMeta::Scaler> scaler_;
  std::optional<CheckpointMeta::Evaluation> evaluation_;
  std::optional<CheckpointMeta::Base> base_;
  int64_t evaluated_ = 0;  // The last step that was.
  std::deque<Pending> pending_;
  bool stopping_ = false, saving_ = false;
  bool evaluate_first_ = false;  // The evaluation of step_ has been cut short.
  TimeLimit time_;
  std::optional<StopAgreement> stops_;  // Last: its thread uses the above.
};

}  // namespace

ExitCode TrainRank(const Recipe& recipe, const Job& job) {
  EarlyStopWatch watch(job);
  return RunRank(job, [&]() -> RankWork {
    ResolvedRun run = Resolve(recipe, PlaceToTrain(job));
    RequireFit(run);
    auto trainer = std::make_shared<Trainer>(std::move(run), job, watch);
    return [trainer] { return trainer->Run(); };
  });
}

}  // namespace fsdp
