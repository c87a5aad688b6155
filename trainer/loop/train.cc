#include "trainer/loop/train.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <optional>
#include <ostream>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>

#include "models/shape_json.h"
#include "trainer/checkpoint/background_saver.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/comm/early_stop.h"
#include "trainer/comm/together.h"
#include "trainer/comm/told_once.h"
#include "trainer/core/check.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/core/whole_file.h"
#include "trainer/data/tokenizer.h"
#include "trainer/engine/plan.h"
#include "trainer/generate/sampler.h"
#include "trainer/loop/run_directory.h"
#include "trainer/loop/setup.h"
#include "trainer/observe/build_info.h"
#include "trainer/observe/chrome_trace.h"
#include "trainer/observe/console.h"
#include "trainer/observe/log.h"
#include "trainer/observe/metrics.h"
#include "trainer/observe/provenance.h"
#include "trainer/observe/tensorboard.h"
#include "trainer/observe/throughput.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/resume.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

int Cores() { return static_cast<int>(DescribeHost().cores); }

std::string Printed(float value) {
  return std::isnan(value) ? "nan" : std::to_string(value);  // A NaN's sign means nothing.
}

// Whether what a rank ends by is a stop that came before the first step: on this rank, in one of
// its waits, or on another one.
bool IsEarlyStop(const Job& job, const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return (ours != nullptr && ours->code() == ExitCode::kStopped) ||
         EarlyStop::Is(job.store->FailureReason());
}

// Aborts the communicators when the job fails on another rank.
class FailureLink {
 public:
  FailureLink(Store& store, std::vector<Communicator*> communicators)
      : store_(store), communicators_(std::move(communicators)) {
    store_.OnFailure([this](const std::string& why) { Abort(why); });
  }
  ~FailureLink() { store_.OnFailure(nullptr); }

  void Abort(const std::string& why) {
    for (Communicator* c : communicators_) c->Abort(why);
  }

 private:
  Store& store_;
  std::vector<Communicator*> communicators_;
};

// Until the ranks train, a stop ends whatever they wait for: by way of the store, where the others
// hear of it as well.
class EarlyStopWatch {
 public:
  explicit EarlyStopWatch(const Job& job) {
    if (!job.stop_requested) return;
    thread_ = std::jthread([this, &job](const std::stop_token& end) {
      std::unique_lock lock(mutex_);
      while (!ended_.wait_for(lock, end, std::chrono::milliseconds(20), [] { return false; }) &&
             !end.stop_requested()) {
        if (!job.stop_requested()) continue;
        stopped_ = true;
        job.store->Fail("rank " + std::to_string(job.rank) + ": " + EarlyStop::kReason);
        return;
      }
    });
  }
  // From here on a stop is for the steps to see. Throws EarlyStop where one has come.
  void End() {
    thread_ = std::jthread();
    if (stopped_) throw EarlyStop();
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::atomic<bool> stopped_{false};
  std::jthread thread_;  // Last: it uses the above.
};

class Trainer {
 public:
  Trainer(const Recipe& recipe, const Job& job, EarlyStopWatch& watch)
      : recipe_(WithDropoutsToTrain(recipe)),
        job_(job),
        watch_(watch),
        threads_(ThreadsFor(recipe, job.local_world)),
        shape_(ShapeFor(recipe_)),
        model_(BuildModel(recipe_, shape_)),
        options_(SessionOptionsFor(recipe, job.world, threads_)),
        data_(OpenData(recipe, shape_, job.world, static_cast<uint64_t>(recipe.run.seed),
                       recipe.data.valid, ProgressFor(job))),
        seed_(static_cast<uint64_t>(recipe.run.seed)),
        held_out_(recipe.data.valid),
        plan_(PlanRun(*model_, options_, job.world, job.local_world)),
        console_(Out(), ConsoleFor(job, [this](std::string_view line) {
                   if (log_) log_->Info(line);
                 })) {
    RequireFit(*model_, options_, plan_, job.local_world);
  }

  ExitCode Run() {
    try {
      Begin();
      return Steps();
    } catch (const std::exception& error) {
      // Before the abort, which changes it.
      std::string reason = error.what();
      const bool comm = dynamic_cast<const CommError*>(&error) != nullptr;
      if (comm) reason += "; rank " + std::to_string(job_.rank) + " stood at " + Where();
      if (link_) link_->Abort(error.what());  // Or our own streams would wait for peers for ever.
      if (IsEarlyStop(job_, error)) {
        if (log_) log_->Info(EarlyStop::kReason);
        if (metrics_) RecordEnd("stopped");
        throw;
      }
      const std::optional<Error> failed_save = GiveUpSaving(error);
      if (failed_save) reason = failed_save->what();
      if (log_) log_->Error(reason);
      if (metrics_) RecordEnd(reason);
      if (failed_save) throw *failed_save;
      if (comm) throw CommError(reason);
      throw;
    }
  }

 private:
  struct Pending {
    int64_t step, index, targets;  // index: the executor's count.
  };

  static Recipe WithDropoutsToTrain(const Recipe& recipe) {
    const Recipe with = WithDropoutsOfRun(recipe);
    return WithDropouts(with, ShapeFor(with));
  }

  // Everything before the first step that involves other ranks or the disk.
  void Begin() {
    stage_ = "the agreement on recipe, schedule, build and data";
    AgreeOnEverything();
    stage_ = "the run directory";
    start_ =
        OpenRunDirectory(recipe_, data_.files, *job_.store, job_.rank, job_.world,
                         job_.restart > 0 ? RunLock::kPatienceAfterRestart : RunLock::kPatience);
    log_.emplace(start_.directory.log(job_.rank));
    log_->Info(job_.place + ", process " + std::to_string(getpid()) + " on " + DescribeHost().name);
    stage_ = "the connection of the ranks";
    Connect();
    CpuOptions device;
    device.spin = job_.local_world * threads_ <= Cores();
    device.checker = job_.checker;
    device_ = std::make_unique<CpuDevice>(device);
    allocator_ = std::make_unique<PlannedAllocator>(*device_, plan_.memory);
    session_.emplace(*device_, *allocator_, *model_, options_, job_.rank, job_.world, gather_.get(),
                     reduce_ ? reduce_.get() : gather_.get());
    if (options_.snapshot) saver_.emplace(job_.checker);
    stage_ = "the initial weights";
    LoadOrInitialize();
    OpenMetrics();
    watch_.End();
    stage_ = "the beginning of a step";
  }

  // What this rank is in: of the streams, where they are in something, otherwise of the host.
  std::string Where() const {
    const std::string streams = session_ ? session_->executor().Where() : "";
    if (!streams.empty()) return streams;
    return stage_ + (step_ > 0 ? ", after step " + std::to_string(step_) : "");
  }

  std::ostream& Out() const {
    static std::ostream null(nullptr);
    return job_.console ? *job_.console : null;
  }
  // Whichever rank of the host tokenises says so.
  static OpenProgress ProgressFor(const Job& job) {
    OpenProgress progress;
    if (job.console != nullptr) {
      progress.say = [&job](const std::string& line) {
        *job.console << Printable(line) << std::endl;
      };
    }
    progress.stop = job.stop_requested;
    return progress;
  }
  static ConsoleOptions ConsoleFor(const Job& job, std::function<void(std::string_view)> copy) {
    if (job.console == nullptr || job.rank != 0) {
      ConsoleOptions off;
      off.enabled = false;
      return off;
    }
    ConsoleOptions options = DetectConsole(1, job.rank);
    options.copy = std::move(copy);
    return options;
  }
  bool first() const { return job_.rank == 0; }
  Executor& executor() { return session_->executor(); }

  void AgreeOnEverything() {
    Labels labels;
    for (const auto& [key, value] : SharedSettings(recipe_)) {
      labels.emplace_back("recipe: " + key, value);
    }
    labels.insert(labels.end(),
                  {{"schedule", std::to_string(plan_.schedule_hash)},
                   {"build", std::string(BuildVersion()) + " " + std::string(BuildGitHash())},
                   {"kernels", IsaName()},
                   {"data", std::to_string(data_.Hash())}});
    Agree(*job_.store, "start", job_.rank, job_.world, labels);
  }

  void Connect() {
    if (job_.world == 1) return;
    gather_ = job_.connect("gather");
    if (options_.executor.communicators == 2) reduce_ = job_.connect("reduce");
    std::vector<Communicator*> all{gather_.get()};
    if (reduce_) all.push_back(reduce_.get());
    link_.emplace(*job_.store, std::move(all));
  }

  ShardPlace Place() {
    const Layout& layout = executor().layout();
    return {job_.rank, job_.world, executor().shard_rank(), executor().replica_rank(),
            job_.world / layout.shards};
  }

  static std::vector<CheckpointState> ForCheckpoint(const std::vector<ShardState>& state) {
    std::vector<CheckpointState> states;
    for (const ShardState& s : state) states.push_back({s.name, s.shards});
    return states;
  }

  void LoadOrInitialize() {
    if (!start_.resume_from.empty()) {
      executor().Synchronize();  // The optimizer's zeros are written.
      CheckpointMeta meta;
      EveryRank("load", [&] { meta = LoadAndCheck(); });
      executor().MastersWritten();
      step_ = meta.step;
      tokens_ = meta.tokens;
      seed_ = meta.seed;
      // Not before all of it has been found whole.
      EveryRank("aside", [&] {
        if (start_.goes_back) aside_ = GoBackTo(start_.directory.checkpoints(), step_);
      });
      start_.hold = {};
      // Samples and their order stay those that the run began with.
      held_out_ = ParseRecipe({{start_.resume_from, meta.recipe}}).data.valid;
      if (seed_ != static_cast<uint64_t>(recipe_.run.seed) || held_out_ != recipe_.data.valid) {
        data_ = OpenData(recipe_, shape_, job_.world, seed_, held_out_, ProgressFor(job_));
      }
      return;
    }
    const auto draw = [seed = seed_](const Parameter& p, int64_t begin, std::span<float> values) {
      FillInitial(p, seed, begin, values);
    };
    if (recipe_.model.init_from) {
      DescribeFiles(*recipe_.model.init_from);
      const std::string& from = *recipe_.model.init_from;
      EveryRank("initial weights", [&] {
        executor().Initialize([draw, read = RequireFinite(OpenInitialWeights(from),
                                                          "model.init_from: " + from, "trained")](
                                  const Parameter& p, int64_t begin, std::span<float> values) {
          p.is_adapter() ? draw(p, begin, values) : read(p, begin, values);
        });
        executor().Synchronize();
      });
    } else {
      executor().Initialize(draw);
    }
    session_->InitializeEma();
    executor().Synchronize();
  }

  // `work` of every rank, or none goes on: all throw the first one's error.
  void EveryRank(const std::string& name, const std::function<void()>& work) {
    Together(*job_.store, "train/" + name, job_.rank, job_.world, [&] {
      work();
      return "";
    });
  }

  // The checkpoint to go on from into the state. Throws CheckpointError that also says how else.
  CheckpointMeta LoadAndCheck() {
    const std::vector<ShardState>& state = session_->state();
    try {
      DeclareHostUse("load", {}, RangesOf(state));
      CheckpointMeta meta =
          LoadCheckpoint(start_.resume_from, executor().layout(), Place(), ForCheckpoint(state));
      if (const std::string wrong = NotFinite(state); !wrong.empty()) {
        throw CheckpointError(start_.resume_from + ": " + wrong +
                              ": not finite, so no run can go on from it");
      }
      return meta;
    } catch (const CheckpointError& error) {
      const bool own =
          std::filesystem::path(start_.resume_from).parent_path() == start_.directory.checkpoints();
      throw CheckpointError(error.what() + (own ? HowToGoOn(start_.resume_from) : ""));
    }
  }

  // Of this rank's shards, the first element that is NaN or infinite, in words; or empty.
  std::string NotFinite(const std::vector<ShardState>& state) {
    const Layout& layout = executor().layout();
    for (const ShardState& s : state) {
      for (size_t u = 0; u < s.shards.size(); ++u) {
        const View& shard = s.shards[u];
        if (shard.NumElements() == 0) continue;
        const std::optional<size_t> first = FirstNotFinite(shard);
        if (!first) continue;
        const auto at = static_cast<int64_t>(*first);
        const int64_t begin = layout.flat_parameters[u].ShardBegin(executor().shard_rank());
        return DescribeNotFinite(s.name, layout.flat_parameters[u], begin + at, FloatAt(shard, at));
      }
    }
    return "";
  }

  // To the stream checker: what the host itself reads and writes of the device's memory.
  void DeclareHostUse(const char* name, const std::vector<Range>& reads,
                      const std::vector<Range>& writes) {
    if (job_.checker) job_.checker->OnHostAccess(name, reads, writes);
  }
  static std::vector<Range> RangesOf(const std::vector<ShardState>& state) {
    std::vector<Range> ranges;
    for (const ShardState& s : state) {
      for (const View& shard : s.shards) {
        if (shard.NumElements() > 0) ranges.emplace_back(shard);
      }
    }
    return ranges;
  }

  // What of init_from's config.json has gone into the run unasked, and what has not at all.
  void DescribeFiles(const std::string& directory) {
    std::string keys, rates;
    for (const std::string& key : IgnoredKeys(directory)) keys += (keys.empty() ? "" : ", ") + key;
    VisitDropouts(shape_, [&](const char* name, double rate) {
      const std::string key = std::string("model.") + name;
      if (rate == 0 || recipe_.places.count(key) > 0) return;
      char text[32];
      std::snprintf(text, sizeof(text), " %g", rate);
      rates += (rates.empty() ? "" : ", ") + key + text;
    });
    if (!rates.empty()) console_.Line(Printable(directory + ": taken over: " + rates));
    if (!keys.empty()) console_.Line(Printable(directory + "/config.json: not looked at: " + keys));
  }

  void OpenMetrics() {
    if (!first()) return;
    const std::string started = UtcNow();
    const RunDirectory& directory = start_.directory;
    if (start_.lock && !start_.lock->missing().empty()) {
      console_.Warning(directory.path + ": no lock can be had (" + start_.lock->missing() +
                       "): that another job trains in it would not be noticed");
    }
    if (start_.resume_from.empty()) {
      // A run that left no checkpoint to go on from; what it has recorded stays.
      const std::string kept = SetMetricsAside(directory);
      if (!kept.empty()) console_.Warning("starting over: the records so far are now in " + kept);
    }
    const std::string left = aside_.empty() ? "" : KeepMetrics(directory);
    WriteWholeFile(directory.recipe(), PrintRecipe(recipe_));
    MetricsKept kept;
    metrics_.emplace(MetricsWriter::Resume(directory.metrics(), step_, &kept));
    TrimTensorBoard(directory.path, step_);
    if (const std::string dropped = DescribeDamage(kept); !dropped.empty()) {
      console_.Warning(directory.metrics() + ": dropped " + dropped);
    }
    RunRecord record;
    record.name = recipe_.run.name;
    record.version = BuildVersion();
    record.git = BuildGitHash();
    record.started = started;
    record.device = "cpu";
    record.world_size = job_.world;
    record.threads = threads_;
    record.seed = seed_;
    record.parameters = NumParameters(shape_);
    record.steps = recipe_.train.steps;
    if (recipe_.log.tensorboard) {
      tensorboard_.emplace(directory.path, step_);
      tensorboard_->Text("recipe", step_, PrintRecipe(recipe_));
    }
    Write(record);
    if (!start_.resume_from.empty()) RecordResume();
    WriteProvenance(directory.provenance(), DescribeRun(started));
    console_.Line(recipe_.run.name + ": " + HumanCount(static_cast<double>(NumParameters(shape_))) +
                  " parameters, " + std::to_string(job_.world) +
                  (job_.world == 1 ? " rank" : " ranks") + " x " + std::to_string(threads_) +
                  (threads_ == 1 ? " thread, " : " threads, ") + HumanBytes(plan_.memory.bytes()) +
                  " planned a rank, in " + directory.path);
    console_.Line(job_.place);
    for (const std::string& line : Advice(recipe_, job_.world)) console_.Warning(line);
    SayWhatIsHeldOut();
    if (!start_.resume_from.empty()) {
      console_.Line("resumed from " + start_.resume_from + ", step " + std::to_string(step_));
    }
    if (!aside_.empty()) {
      std::string list;
      for (const std::string& name : aside_) list += (list.empty() ? "" : ", ") + name;
      console_.Warning("set aside, because this run goes back to step " + std::to_string(step_) +
                       ": " + list + " in " + directory.checkpoints() +
                       (left.empty() ? "" : "; the records so far are also in " + left));
    }
  }

  void RecordResume() {
    ResumeRecord record{step_, start_.resume_from, start_.data_changed};
    for (const std::string& change : start_.valid_changed) {
      record.data_changed.push_back("data.valid: " + change);
    }
    for (const std::string& change : record.data_changed) console_.Warning("data: " + change);
    if (!start_.data_changed.empty() && std::get_if<HeldOut>(&held_out_)) {
      console_.Warning("data: what data.valid held out until now may be trained on from here on");
    }
    if (start_.data_unknown) {
      console_.Warning("data: " + start_.resume_from +
                       " does not say what the run was trained on (an older build wrote it): it is "
                       "not compared");
    }
    Write(record);
  }
  // Held out, but evaluated by nobody: said, because it is easily not meant.
  void SayWhatIsHeldOut() {
    const auto* held = std::get_if<HeldOut>(&held_out_);
    if (held == nullptr || recipe_.eval.every > 0) return;
    char share[32];
    std::snprintf(share, sizeof(share), "%g", 100 * held->fraction);
    console_.Line(std::string("data.valid: the last ") + share +
                  " % of the data are held out, and eval.every: 0 never evaluates them; to "
                  "train a new run on all of it: data.valid: null");
  }

  void Write(const MetricsRecord& record) {
    metrics_->Write(record);
    if (tensorboard_) tensorboard_->Write(record);
  }
  void SyncRecords() {
    metrics_->Sync();
    if (tensorboard_) tensorboard_->Sync();
  }

  Provenance DescribeRun(const std::string& started) const {
    Provenance p;
    p.command_line = job_.command_line;
    std::error_code ignored;
    p.directory = std::filesystem::current_path(ignored).string();
    p.started = started;
    p.version = BuildVersion();
    p.git = BuildGitHash();
    p.compiler = BuildCompiler();
    p.device = "cpu";
    p.libraries = {CLibrary(), {"kernels", IsaName()}};
    p.world_size = job_.world;
    p.threads = threads_;
    p.seed = seed_;
    p.host = DescribeHost();
    std::vector<DataFile> said;  // Each once.
    for (const auto* list : {&data_.files.train, &data_.files.valid}) {
      for (const DataFile& file : *list) {
        if (std::find(said.begin(), said.end(), file) != said.end()) continue;
        said.push_back(file);
        p.data.push_back({file.path, file.bytes, file.hash});
      }
    }
    return p;
  }

  ExitCode Steps() {
    ThroughputOptions throughput;
    throughput.clock = [this] { return device_->Now(); };
    throughput.flops_per_token = model_->FlopsPerToken(recipe_.data.seq_len);
    throughput.devices = job_.world;
    meter_.emplace(throughput);
    logged_step_ = step_;
    logged_tokens_ = tokens_;
    const int64_t last = recipe_.train.steps;
    if (step_ >= last) {
      if (first()) console_.Line("nothing to do: step " + std::to_string(step_) + " is the last");
      return Finish("done", ExitCode::kDone);
    }
    while (step_ < last && !stopping_) {
      if (pending_.size() == 2) TakeResult();
      if (stopping_) break;
      if (saver_ && saver_->ended() && !saver_->failed()) FinishSaving();
      if (saving_) Save();
      const int64_t step = step_ + 1;
      const bool traced = IsTraced(step);
      if (traced) StartTrace();
      IssueStep(step);
      if (traced) WriteTrace(step);
      if (IsEvaluation(step)) Evaluate();
      if (IsCheckpoint(step)) Save();
    }
    Drain();
    FinishSaving();
    const bool early = stopping_ && step_ < last;
    if ((early || saving_) && saved_step_ != step_) Save();
    if (early) {
      if (first()) {
        console_.Line("stopped after step " + std::to_string(step_) + ": the run can go on from " +
                      start_.directory.checkpoints() + "/" + StepName(saved_step_));
      }
      return Finish("stopped", ExitCode::kStopped);
    }
    if (saved_step_ != step_) RequireFiniteState();
    return Finish("done", ExitCode::kDone);
  }

  // The update of the last step may have overflowed, which no loss has shown. A checkpoint of it
  // would have.
  void RequireFiniteState() {
    executor().Synchronize();
    DeclareHostUse("look", RangesOf(session_->state()), {});
    EveryRank("last update", [&] {
      const std::string wrong = NotFinite(session_->state());
      if (wrong.empty()) return;
      throw Error(ExitCode::kNotFinite, "after step " + std::to_string(step_) + ": " + wrong +
                                            ": not finite, so its update has overflowed; a lower "
                                            "optimizer.lr or more schedule.warmup_steps usually "
                                            "helps");
    });
  }

  void IssueStep(int64_t step) {
    Session::Wishes wishes;
    // A save that failed has failed on all ranks, but they need not know it at the same step: they
    // stop together, and each then finds out why.
    wishes.stop = (job_.stop_requested && job_.stop_requested()) || (saver_ && saver_->failed()) ||
                  LostItsReader();
    wishes.save = job_.take_save_request && job_.take_save_request();
    if (job_.take_report_request && job_.take_report_request()) {
      const std::string where = "rank " + std::to_string(job_.rank) + " is about to enqueue step " +
                                std::to_string(step) + ", " + std::to_string(pending_.size()) +
                                " steps are in the air; it stands at " + Where();
      log_->Info(where);
      console_.Above([&] { std::cerr << where << std::endl; });
    }
    const int64_t targets = data_.train->TargetsOfStep(step);
    session_->Train(step, targets, wishes, [this, step](int m, const Batch& batch) {
      data_.train->MicroBatch(step, m, job_.rank, batch);
    });
    pending_.push_back({step, executor().steps() - 1, targets});
    step_ = step;
  }

  // Whoever has read the console has gone (`| head -1`), and so is everything that is still said
  // there: that is how one stops a program that prints. Where it cannot be written for another
  // reason, a full disk, the run goes on without.
  bool LostItsReader() {
    if (!first() || job_.console == nullptr || job_.console->good()) return lost_reader_;
    if (std::exchange(console_failed_, true)) return lost_reader_;
    lost_reader_ = job_.reader_gone && job_.reader_gone();
    log_->Warning(std::string("the console cannot be written any more; what would be said there ") +
                  "is here alone" + (lost_reader_ ? ". Its reader has gone: stopping" : ""));
    return lost_reader_;
  }

  // The oldest step that is still in the air: blocks until it is done.
  void TakeResult() {
    const Pending pending = pending_.front();
    pending_.pop_front();
    const StepScalars result = executor().Result(pending.index);
    tokens_ += pending.targets;
    AddTimes(executor().Times(pending.index));
    const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
    if (first()) {
      Record(pending.step, result);
      console_.Progress(pending.step, recipe_.train.steps, result.loss,
                        meter_->TimeLeft(recipe_.train.steps - pending.step));
    }
    if (!finite) {
      FinishSaving();  // What it saves is from before: good, or where it all began.
      if (first()) Write(SkippedRecord{pending.step, "loss or gradient not finite"});
      // Every rank comes here at this step; who ends first takes the store with it.
      BeforeAllThrow(*job_.store, "train/not finite", job_.rank, job_.world);
      throw Error(ExitCode::kNotFinite,
                  "step " + std::to_string(pending.step) + ": loss " + Printed(result.loss) +
                      ", gradient norm " + Printed(result.grad_norm) +
                      ": not finite. The step changed no parameter; a lower optimizer.lr or more "
                      "schedule.warmup_steps usually helps");
    }
    if (result.stop > 0) stopping_ = true;
    if (result.save > 0) saving_ = true;
  }

  void AddTimes(const StepTimes& t) {
    const double between = last_end_ ? t.begin - *last_end_ - elsewhere_ : 0;
    last_end_ = t.end;
    elsewhere_ = 0;
    times_ += {t.data,      t.forward,       t.recompute,           t.backward,
               t.optimizer, t.communication, std::max(0.0, between)};
  }

  void Drain() {
    while (!pending_.empty()) TakeResult();
  }

  void Record(int64_t step, const StepScalars& result) {
    const bool logged = step % recipe_.log.every == 0 || step == recipe_.train.steps;
    if (!logged) return;
    const ThroughputMeter::Rates rates =
        meter_->Take(step - logged_step_, tokens_ - logged_tokens_);
    StepRecord record;
    record.time = times_ / static_cast<double>(step - logged_step_);
    times_ = {};
    logged_step_ = step;
    logged_tokens_ = tokens_;
    record.step = step;
    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.lr = options_.lr.At(step);
    record.tokens = tokens_;
    record.step_time_s = rates.step_time_s;
    record.tokens_per_s = rates.tokens_per_s;
    record.tflops_per_device = rates.tflops_per_device;
    record.mfu = rates.mfu;
    const int64_t bytes = plan_.memory.bytes();  // Every rank's, and the same at every moment.
    record.memory = {bytes, bytes, bytes};
    Write(record);
    const int64_t left = recipe_.train.steps - step;
    console_.Step(record, recipe_.train.steps, meter_->TimeLeft(left));
  }

  // The last record of a run that fails. Where the disk is what failed, that is reported already.
  void RecordEnd(const std::string& reason) {
    try {
      Write(EndRecord{reason});
    } catch (const Error&) {
    }
  }

  bool IsTraced(int64_t step) const {
    const std::vector<int64_t>& steps = recipe_.log.trace_steps;
    return std::find(steps.begin(), steps.end(), step) != steps.end();
  }
  bool IsEvaluation(int64_t step) const {
    const int64_t every = recipe_.eval.every;
    return !data_.valid.empty() && every > 0 && (step % every == 0 || step == recipe_.train.steps);
  }
  bool IsCheckpoint(int64_t step) const {
    const int64_t every = recipe_.checkpoint.every;
    return every > 0 && (step % every == 0 || step == recipe_.train.steps);
  }

  void StartTrace() {
    Drain();  // Or the time of the steps in the air would be counted as this one's.
    executor().Synchronize();
    device_->StartTrace();
  }
  void WriteTrace(int64_t step) {
    Drain();
    executor().Synchronize();
    const RankTrace trace{job_.rank, device_->TakeTrace()};
    std::string path = start_.directory.trace(step);
    if (job_.world > 1) path.insert(path.rfind('.'), "_rank_" + std::to_string(job_.rank));
    // That alone: a run directory that was removed is not made again.
    std::error_code error;
    const std::filesystem::path traces = std::filesystem::path(path).parent_path();
    std::filesystem::create_directory(traces, error);
    if (error) throw CheckpointError(traces.string() + ": cannot be made: " + error.message());
    WriteChromeTrace(path, std::span(&trace, 1));
  }

  // The loss of each validation set; a sample after them.
  void Evaluate() {
    Drain();
    meter_->Pause();
    const double begin = device_->Now();
    for (const RunData::Valid& valid : data_.valid) {
      const double loss = EvalLoss(*valid.loader);
      if (!first()) continue;
      const EvalRecord record{step_, loss, valid.name};
      Write(record);
      console_.Eval(record);
    }
    const double evaluated = device_->Now();
    if (options_.generate) ShowSample();
    const double end = device_->Now();
    elsewhere_ += end - begin;
    if (first()) Write(PauseRecord{step_, evaluated - begin, end - evaluated, 0});
    meter_->Continue();
  }

  // Mean over the targets of all its batches.
  double EvalLoss(const EvalLoader& loader) {
    const ExecutorOptions& e = options_.executor;
    const double wave = static_cast<double>(e.micro_batch_size * e.seq_len * job_.world);
    double sum = 0;
    std::optional<int64_t> last;
    const auto take = [&] {
      if (last) sum += static_cast<double>(executor().Result(*last).loss) * wave;
    };
    for (int64_t b = 0; b < loader.Batches(); ++b) {
      for (int64_t m = 0; m < loader.MicroBatches(); ++m) {
        session_->Eval(static_cast<float>(1 / wave), [&, b, m](int, const Batch& batch) {
          loader.MicroBatch(b, m, job_.rank, batch);
        });
        take();
        last = executor().steps() - 1;
      }
    }
    take();
    return sum / static_cast<double>(loader.Targets());
  }

  void ShowSample() {
    const SampleRecipe& sample = *recipe_.eval.sample;
    SampleOptions options;
    options.max_tokens = sample.max_tokens;
    options.sampling.temperature = sample.temperature;
    const Tokenizer& tokenizer = *data_.tokenizer;
    options.vocab = std::min<int64_t>(VocabSize(shape_), tokenizer.vocab_size());
    options.context = recipe_.data.seq_len;
    options.end = tokenizer.eot();
    options.seed = seed_;
    options.step = static_cast<uint64_t>(step_);
    const auto logits = [&](std::span<const int32_t> tokens) {
      return session_->Logits(static_cast<int64_t>(tokens.size()) - 1,
                              [tokens](int, const Batch& batch) { FillPrompt(tokens, batch); });
    };
    std::vector<int32_t> prompt = tokenizer.Encode(sample.prompt);
    if (tokenizer.bos()) prompt.insert(prompt.begin(), *tokenizer.bos());
    if (prompt.empty()) return;  // Nothing but what the tokenizer takes away.
    std::string text;
    for (const int32_t id : Sample(options, std::move(prompt), logits)) text += tokenizer.Piece(id);
    if (!first()) return;
    const SampleRecord record{step_, sample.prompt, text};
    Write(record);
    console_.Line("sample: " + record.prompt + record.text);
  }

  // Row 0: the tokens, then zeros, which causal attention never sees from where we look.
  static void FillPrompt(std::span<const int32_t> tokens, const Batch& batch) {
    const int64_t seq = batch.tokens.shape[1];
    for (int64_t i = 0; i < batch.tokens.NumElements(); ++i) {
      batch.tokens.As<int32_t>()[i] =
          i < static_cast<int64_t>(tokens.size()) ? tokens[static_cast<size_t>(i)] : 0;
      batch.targets.As<int32_t>()[i] = 0;
      batch.weights.As<float>()[i] = 0;
      batch.positions.As<int32_t>()[i] = static_cast<int32_t>(i % seq);
    }
    std::fill_n(batch.sample_keys.As<int32_t>(), batch.sample_keys.NumElements(), 0);
  }

  // Nothing of a step becomes durable before its events and the communicators have been checked:
  // that is done here, whoever writes.
  void Save() {
    Drain();
    stage_ = "saving the checkpoint of step " + std::to_string(step_);
    saving_ = false;  // Whoever asked until now gets this one.
    executor().Synchronize();
    meter_->Pause();
    const double begin = device_->Now();
    FinishSaving();
    if (first()) SyncRecords();
    CheckpointMeta meta;
    meta.step = step_;
    meta.tokens = tokens_;
    meta.seed = seed_;
    Recipe begun = recipe_;
    begun.run.seed = static_cast<int64_t>(seed_);
    begun.data.valid = held_out_;
    meta.recipe = PrintRecipe(begun);
    meta.config = ShapeToJson(shape_);
    meta.data = data_.files;
    const bool in_background = saver_ && !stopping_ && step_ < recipe_.train.steps;
    const auto save = [this, meta, attempt = saves_++](const std::vector<ShardState>& state) {
      return SaveCheckpoint(start_.directory.checkpoints(), executor().layout(), Place(),
                            ForCheckpoint(state), meta, *job_.store, attempt,
                            recipe_.checkpoint.keep_last);
    };
    saved_step_ = step_;
    if (in_background) {
      const std::vector<ShardState>& snapshot = session_->TakeSnapshot();
      executor().Synchronize();
      saver_->Start([save, &snapshot] { return save(snapshot); }, RangesOf(snapshot));
    } else {
      DeclareHostUse("save", RangesOf(session_->state()), {});
      RecordSaved(save(session_->state()));
    }
    const double seconds = device_->Now() - begin;
    elsewhere_ += seconds;
    if (first()) Write(PauseRecord{.step = step_, .checkpoint = seconds});
    meter_->Continue();
    stage_ = "the beginning of a step";
  }

  // Waits for the save in flight, if there is one. Throws what it threw.
  void FinishSaving() {
    if (saver_ && saver_->in_flight()) RecordSaved(saver_->Finish());
  }

  void RecordSaved(const SavedCheckpoint& saved) {
    if (!first()) return;
    const CheckpointRecord record{saved_step_, saved.path, saved.seconds, saved.bytes};
    Write(record);
    console_.Checkpoint(record);
  }

  // The run ends by `error`. A save in flight waits for ranks that may be no more, unless the store
  // says so. Returns why it failed, where it did before the run and another rank has ended that by
  // now: then `error` is only the echo.
  std::optional<Error> GiveUpSaving(const std::exception& error) {
    if (!saver_ || !saver_->in_flight()) return std::nullopt;
    if (!saver_->ended() && job_.store->FailureReason().empty()) {
      job_.store->Fail("rank " + std::to_string(job_.rank) + ": " + error.what());
    }
    try {
      saver_->Finish();
    } catch (const CommError&) {  // It went down with the run.
    } catch (const Error& cause) {
      if (dynamic_cast<const CommError*>(&error)) return cause;
    } catch (const std::exception&) {
    }
    return std::nullopt;
  }

  ExitCode Finish(const char* reason, ExitCode code) {
    executor().Synchronize();
    if (first()) {
      Write(EndRecord{reason});
      SyncRecords();
    }
    stage_ = "the end of the run";
    log_->Info(std::string(reason) + " at step " + std::to_string(step_));
    Barrier(*job_.store, "end", job_.rank, job_.world);
    return code;
  }

  const Recipe recipe_;
  const Job& job_;
  EarlyStopWatch& watch_;
  const int threads_;
  const ModelShape shape_;
  const std::unique_ptr<Model> model_;
  const SessionOptions options_;
  RunData data_;
  // Of the run as it began: a resume does not change them.
  uint64_t seed_;
  ValidRecipe held_out_;
  RunPlan plan_;
  Console console_;
  RunStart start_;
  std::vector<std::string> aside_;  // What rank 0 has set aside.
  std::optional<Log> log_;
  // In the order in which they must outlive one another.
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<Communicator> gather_, reduce_;
  std::optional<FailureLink> link_;
  std::unique_ptr<PlannedAllocator> allocator_;
  std::optional<Session> session_;
  std::optional<BackgroundSaver> saver_;  // Reads the session's snapshot.
  std::optional<MetricsWriter> metrics_;  // Rank 0's, as the next.
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<ThroughputMeter> meter_;

  std::string stage_ = "the start";  // What the host is in, for messages.
  int64_t step_ = 0;                 // Issued.
  int64_t tokens_ = 0;               // Target tokens of the steps whose results have been read.
  int64_t logged_step_ = 0, logged_tokens_ = 0;
  TimeParts times_;                 // Sums since the last record.
  std::optional<double> last_end_;  // Of a training step, on the device's clock.
  double elsewhere_ = 0;            // Seconds since then that went to no training step.
  int64_t saves_ = 0, saved_step_ = -1;
  std::deque<Pending> pending_;
  bool stopping_ = false, saving_ = false;
  bool console_failed_ = false, lost_reader_ = false;
};

}  // namespace

ExitCode TrainRank(const Recipe& recipe, const Job& job) {
  EarlyStopWatch watch(job);
  try {
    std::optional<Trainer> trainer;
    try {
      trainer.emplace(recipe, job, watch);
    } catch (const Error& error) {
      if (IsEarlyStop(job, error) || TellsIt(*job.store, "start", job.rank, job.world, error)) {
        throw;
      }
      throw ToldByAnother(error);
    }
    try {
      return trainer->Run();
    } catch (const Error& error) {  // All ranks see the same numbers.
      if (error.code() != ExitCode::kNotFinite ||
          TellsIt(*job.store, "not_finite", job.rank, job.world, error)) {
        throw;
      }
      throw ToldByAnother(error);
    }
  } catch (const std::exception& error) {
    // The others hear the cause, not just that somebody is gone.
    if (job.store->FailureReason().empty()) {
      job.store->Fail("rank " + std::to_string(job.rank) + ": " +
                      (IsEarlyStop(job, error) ? EarlyStop::kReason : error.what()));
    }
    if (!IsEarlyStop(job, error)) throw;
    const bool says_more = dynamic_cast<const CommError*>(&error) == nullptr &&
                           !EarlyStop::Is(error.what()) && job.console != nullptr;
    if (says_more) *job.console << Printable(error.what()) << std::endl;  // What goes on, and how.
    throw EarlyStop();
  }
}

}  // namespace fsdp
