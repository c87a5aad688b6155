#include "trainer/loop/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <ostream>
#include <span>
#include <utility>
#include <variant>

#include "models/shape.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/loop/chosen_checkpoint.h"
#include "trainer/loop/run_data.h"
#include "trainer/observe/build_info.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

std::ostream& Out(const Job& job) {
  static std::ostream null(nullptr);
  return job.console ? *job.console : null;
}

ConsoleOptions ConsoleFor(const Job& job, std::function<void(std::string_view)> copy) {
  if (job.console == nullptr || job.rank != 0) {
    ConsoleOptions off;
    off.enabled = false;
    return off;
  }
  ConsoleOptions options = DetectConsole(1, job.rank);
  options.copy = std::move(copy);
  return options;
}

}  // namespace

Recorder::Recorder(const Recipe& recipe, const Job& job)
    : recipe_(recipe), job_(job), console_(Out(job), ConsoleFor(job, [this](std::string_view line) {
                                             if (log_) log_->Info(line);
                                           })) {}

void Recorder::OpenLog(const RunDirectory& directory) {
  directory_ = &directory;
  log_.emplace(directory.log(job_.rank));
  log_->Info(job_.place + ", process " + std::to_string(getpid()) + " on " + DescribeHost().name);
}

RunRecord Recorder::RecordOf(const std::string& started, const RunFacts& facts) const {
  RunRecord record;
  record.name = recipe_.run.name;
  record.version = BuildVersion();
  record.git = BuildGitHash();
  record.started = started;
  record.device = Name(job_.device.type);
  record.world_size = job_.world;
  record.threads = facts.threads;
  record.seed = facts.seed;
  record.parameters = facts.parameters;
  record.steps = recipe_.train.steps;
  const FsdpOptions::CpuOffload& offload = recipe_.fsdp.cpu_offload;
  if (offload.optimizer) record.optimizer_share = offload.optimizer_share;
  if (recipe_.fsdp.fake_all_gather) record.fake.emplace_back("all_gather");
  if (recipe_.fsdp.fake_reduce) record.fake.emplace_back("reduce");
  return record;
}

void Recorder::Begin(const RunStart& start, const SetAside& aside, int64_t step,
                     const RunFacts& facts) {
  planned_bytes_ = facts.planned_bytes;
  host_bytes_ = facts.host_bytes;
  disk_bytes_ = facts.disk_bytes;
  const std::span<const SourceRecipe> sources = recipe_.data.TrainSources();
  const bool talks = std::any_of(sources.begin(), sources.end(), [](const SourceRecipe& source) {
    return RowOf(source).chat_template != nullptr;
  });
  if (facts.data->tokenizer) speech_ = talks ? Speech::kChat : Speech::kText;
  if (!first()) {
    Out(job_) << WhereToLook(job_, start.directory) << std::flush;
    return;
  }
  const std::string started = UtcNow();
  const RunDirectory& directory = start.directory;
  if (start.lock && !start.lock->missing().empty()) {
    console_.Warning(directory.path + ": no lock can be had (" + start.lock->missing() +
                     "): that another job trains in it would not be noticed");
  }
  if (start.resume_from.empty()) {
    // A run that left no checkpoint to go on from; what it has recorded stays.
    const std::string kept = SetMetricsAside(directory);
    if (!kept.empty()) console_.Warning("starting over: the records so far are now in " + kept);
  }
  OpenFiles(step);
  Write(RecordOf(started, facts));
  if (!start.resume_from.empty()) RecordResume(start, step, facts);
  provenance_ = DescribeRun(started, facts);
  WriteProvenance(directory.provenance(), *provenance_);
  console_.Line(recipe_.run.name + ": " + WhatTrains(facts.trained, facts.parameters) + ", " +
                std::to_string(job_.world) + (job_.world == 1 ? " rank" : " ranks") + " x " +
                std::to_string(facts.threads) + (facts.threads == 1 ? " thread, " : " threads, ") +
                HumanBytes(facts.planned_bytes) + " planned a rank, in " + directory.path);
  if (job_.world > 1) console_.Line(job_.place);  // The log has it always.
  if (!job_.transport.empty()) console_.Line(job_.transport);
  if (!job_.device.note.empty()) console_.Line(job_.device.note);
  for (const std::string& line : facts.chosen) {
    if (!line.empty()) console_.Line(line);
  }
  for (const std::string& note : recipe_.notes) console_.Line(Printable(note));
  for (const std::string& line : Advice(recipe_, job_.world)) console_.Warning(line);
  SayWhatIsNotRead();
  SayDataUse(*facts.data);
  SayWhatIsHeldOut(facts);
  console_.Line(WhatIsSaved(recipe_.checkpoint));
  if (!start.resume_from.empty()) {
    console_.Line("resumed from " + start.resume_from + ", step " + std::to_string(step));
  }
  if (!aside.checkpoints.empty()) {
    std::string list;
    for (const std::string& name : aside.checkpoints) list += (list.empty() ? "" : ", ") + name;
    console_.Warning(
        "set aside, because this run goes back to step " + std::to_string(step) + ": " + list +
        " in " + directory.checkpoints() +
        (aside.metrics.empty() ? "" : "; the records so far are also in " + aside.metrics));
  }
}

void Recorder::Stopping(const AgreedStop& stop) {
  console_.Line(WhyStopping(stop, recipe_.fsdp.fake()));
}

void Recorder::NothingToDo(int64_t step) {
  console_.Line("nothing to do: step " + std::to_string(step) +
                " is the last. More steps: --set train.steps=" + std::to_string(2 * step) +
                "; another run: --set run.name=...");
}

void Recorder::ProductsRefused(const std::vector<std::string>& products) {
  if (!provenance_ || products.empty()) return;
  for (const std::string& product : products) {
    console_.Warning("cuBLASLt refuses the product " + product +
                     "; it is computed in another form, or by kernels of our own");
  }
  provenance_->refused_products = products;
  WriteProvenance(directory_->provenance(), *provenance_);
}

void Recorder::OpenFiles(int64_t step) {
  const RunDirectory& directory = *directory_;
  WriteAtomicFile(directory.recipe(), PrintRecipe(recipe_));
  MetricsKept kept;
  metrics_.emplace(MetricsWriter::Resume(directory.metrics(), step, &kept));
  TrimTensorBoard(directory.path, step);
  if (const std::string dropped = DescribeDamage(kept); !dropped.empty()) {
    console_.Warning(directory.metrics() + ": dropped " + dropped);
  }
  if (recipe_.log.tensorboard) {
    tensorboard_.emplace(directory.path, step);
    tensorboard_->Text("recipe", step, PrintRecipe(recipe_));
  }
}

void Recorder::RecordResume(const RunStart& start, int64_t step, const RunFacts& facts) {
  ResumeRecord record{step, start.resume_from, start.data_changed, start.recipe_changed,
                      start.records_changed};
  for (const std::string& change : start.recipe_changed) {
    console_.Warning("recipe: " + Printable(change));
  }
  if (start.micro_batch_changed) {
    console_.Line(
        "train.micro_batch_size is not the checkpoint's: the same samples in the same "
        "order, and sums that are rounded in other places");
  }
  for (const std::string& change : start.valid_changed) {
    record.data_changed.push_back("data.valid: " + change);
  }
  for (const std::string& change : record.data_changed) console_.Warning("data: " + change);
  if (!start.data_changed.empty() && std::get_if<HeldOut>(facts.held_out)) {
    console_.Warning("data: what data.valid held out until now may be trained on from here on");
  }
  if (start.data_unknown) {
    console_.Warning("data: " + start.resume_from +
                     " does not say what the run was trained on (an import wrote it): it is not "
                     "compared");
  }
  if (!start.records_changed.empty()) {
    console_.Warning("records: " + directory_->metrics() + ": " + start.records_changed +
                     ": not the records that the run had when " + start.resume_from + " was saved");
  }
  if (!start.records_unknown.empty()) {
    console_.Line("records: " + start.records_unknown + ": not compared");
  }
  Write(record);
}

void Recorder::SayWhatIsNotRead() {
  if (!recipe_.fsdp.mixed_precision.sum || job_.device.type != DeviceType::kCpu) return;
  console_.Line(
      recipe_.Mistake("fsdp.mixed_precision.sum", "sums are exact on CPUs, which do not read it"));
}

void Recorder::SayDataUse(const RunData& data) {
  if (data.samples == nullptr) return;
  const Samples& samples = *data.samples;
  const std::vector<int64_t> counts =
      samples.mixture().Counts(recipe_.train.steps * recipe_.train.global_batch_size);
  std::vector<SourceUse> uses;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto source = static_cast<int64_t>(i);
    const SourceRecipe& recipe = recipe_.data.TrainSources()[i];
    const DataSource& row = RowOf(recipe);
    if (row.gives.empty()) continue;
    uses.push_back({counts[i], samples.Rows(source), samples.Tokens(source),
                    samples.WholeSamples(source), std::string(row.noun)});
  }
  if (!uses.empty()) console_.Line("data: " + DescribeDataUse(uses, recipe_.data.seq_len));
}

// Held out, but evaluated by nobody: said, because it is easily not meant.
void Recorder::SayWhatIsHeldOut(const RunFacts& facts) {
  const auto* held = std::get_if<HeldOut>(facts.held_out);
  if (held == nullptr || recipe_.eval.every > 0) return;
  char share[32];
  std::snprintf(share, sizeof(share), "%g", 100 * held->fraction);
  console_.Line(std::string("data.valid: the last ") + share +
                " % of the data are held out, and eval.every: 0 never evaluates them; to "
                "train a new run on all of it: data.valid: null");
}

Provenance Recorder::DescribeRun(const std::string& started, const RunFacts& facts) const {
  Provenance p;
  p.command_line = job_.command_line;
  std::error_code ignored;
  p.directory = std::filesystem::current_path(ignored).string();
  p.started = started;
  p.version = BuildVersion();
  p.git = BuildGitHash();
  p.compiler = BuildCompiler();
  p.device = job_.device.name;
  p.gpu_memory = facts.gpu_memory;
  p.libraries = {CLibrary(), {"kernels", KernelsInUse()}};
  if (!BuildCuda().empty()) p.libraries.emplace_back("cuda", BuildCuda());
  if (!facts.attention.empty()) p.libraries.emplace_back("attention", facts.attention);
  p.world_size = job_.world;
  p.threads = facts.threads;
  p.seed = facts.seed;
  p.host = DescribeHost();
  std::vector<DataFile> said;  // Each once.
  for (const auto* list : {&facts.data->files.train, &facts.data->files.valid}) {
    for (const DataFile& file : *list) {
      if (std::find(said.begin(), said.end(), file) != said.end()) continue;
      said.push_back(file);
      p.data.push_back({file.path, file.bytes, file.hash});
    }
  }
  return p;
}

void Recorder::StartClock(const ThroughputOptions& options, int64_t step, int64_t targets) {
  clock_ = options.clock;
  meter_.emplace(options);
  logged_step_ = first_step_ = step;
  logged_targets_ = first_targets_ = last_targets_ = targets;
  began_ = Now();
}

void Recorder::Write(const MetricsRecord& record) {
  if (!metrics_) return;
  if (std::holds_alternative<EndRecord>(record)) WriteLoads();
  metrics_->Write(record);
  if (tensorboard_) tensorboard_->Write(record);
  log_->RequireThere();
  if (const auto* eval = std::get_if<EvalRecord>(&record)) {
    evaluations_[eval->name] = eval->loss;
    console_.Eval(*eval);
  }
  if (const auto* saved = std::get_if<CheckpointRecord>(&record)) {
    saved_ = saved->path;
    console_.Checkpoint(*saved);
  }
  if (const auto* sample = std::get_if<SampleRecord>(&record)) {
    const bool goes_on = recipe_.data.objective == DataRecipe::Objective::kCausal;
    console_.Line("sample: " + sample->prompt + (goes_on ? "" : " -> ") + sample->text);
  }
}

void Recorder::Add(const StepAccount& account) {
  const StepTimes& t = account.times;
  const double between = last_end_ ? t.begin - *last_end_ - elsewhere_ : 0;
  last_end_ = t.end;
  elsewhere_ = 0;
  times_ += {t.data,      t.forward,       t.recompute, t.backward,
             t.optimizer, t.communication, t.offload,   std::max(0.0, between)};
  if (peaks_ && account.memory) {
    peaks_->GoOnWith(*account.memory);
  } else {
    peaks_ = account.memory;
  }
}

void Recorder::NoteSpike(int64_t step, const char* what, SpikeWindow& before, double value,
                         double worth_saying) {
  const std::optional<double> z = before.Add(value);
  const double most = recipe_.log.spike_z;
  if (most == 0 || !z || *z <= most) return;
  Write(SpikeRecord{step, what, value, *z});
  if (value <= worth_saying * before.Median()) return;
  char text[128];
  std::snprintf(text, sizeof(text), "step %lld: %s %.4g is %.3g deviations above its last steps",
                static_cast<long long>(step), what, value, *z);
  console_.Warning(text);
}

void Recorder::Step(int64_t step, const StepScalars& result, const StepAccount& account,
                    const StepWork& work, double lr) {
  if (!first()) return;
  Add(account);
  const int64_t targets = work.targets - std::exchange(last_targets_, work.targets);
  input_tokens_ += work.tokens;
  all_tokens_ += static_cast<double>(work.tokens);
  if (std::isfinite(result.loss)) {
    loss_sum_ += result.loss * static_cast<double>(targets);
    loss_targets_ += targets;
  }
  const int64_t steps = recipe_.train.steps, left = steps - step;
  const bool records = step % recipe_.log.every == 0 || left == 0;
  const bool records_loads = step % recipe_.log.expert_loads_every == 0 || left == 0;
  const std::optional<ExpertLoads> experts = LoadsOf(account.tallies);
  if (records) {
    const ThroughputMeter::Rates rates =
        meter_->Take(step - logged_step_, work.targets - logged_targets_, account.times.end);
    StepRecord record;
    const auto taken = static_cast<double>(step - logged_step_);
    record.time = times_ / taken;
    times_ = {};
    logged_step_ = step;
    logged_targets_ = work.targets;
    record.step = step;
    record.loss = result.loss;
    // Not a number where no step had a finite loss.
    record.loss_mean =
        std::exchange(loss_sum_, 0) / static_cast<double>(std::exchange(loss_targets_, 0));
    record.grad_norm = result.grad_norm;
    record.lr = lr;
    record.tokens = work.targets;
    record.samples = step * recipe_.train.global_batch_size;
    record.step_time_s = rates.step_time_s;
    record.targets_per_s = rates.targets_per_s;
    const auto tokens = static_cast<double>(std::exchange(input_tokens_, 0));
    if (rates.step_time_s > 0) {
      record.tokens_per_s = tokens / taken / rates.step_time_s;
      record.samples_per_s =
          static_cast<double>(recipe_.train.global_batch_size) / rates.step_time_s;
    }
    record.tflops_per_device = rates.tflops_per_device;
    record.mfu = rates.mfu;
    if (account.table_rounds > 0) record.table_rounds = account.table_rounds;
    if (result.loss_scale > 0) record.loss_scale = result.loss_scale;
    record.experts = experts;
    record.memory = TakeMemory();
    const TrafficBytes& traffic = account.traffic;
    record.communication = {
        traffic.of(Collective::kAllGather), traffic.of(Collective::kReduceScatter),
        traffic.of(Collective::kAllReduce), traffic.of(Collective::kAllToAll), traffic.network};
    Write(record);
    console_.Step(record, steps, meter_->TimeLeft(left));
  }
  if (experts) loads_ = {step, experts->loads};
  if (records_loads) WriteLoads();
  NoteSpike(step, "loss", losses_, result.loss, /*worth_saying=*/0);
  NoteSpike(step, "grad_norm", norms_, result.grad_norm, /*worth_saying=*/4);
  console_.Progress(step, steps, result.loss, meter_->TimeLeft(left));
}

void Recorder::WriteTrace(int64_t step, RankTrace trace) {
  trace.rank = job_.rank;
  std::string path = directory_->trace(step);
  if (job_.world > 1) path.insert(path.rfind('.'), "_rank_" + std::to_string(job_.rank));
  // Makes traces/ alone: a run directory that was removed is not made again.
  std::error_code error;
  const std::filesystem::path traces = std::filesystem::path(path).parent_path();
  std::filesystem::create_directory(traces, error);
  if (error) throw CheckpointError(traces.string() + ": cannot be made: " + error.message());
  WriteChromeTrace(path, std::span(&trace, 1));
}

MemoryPeaks Recorder::TakeMemory() {
  // A plan is every rank's, and the same at every moment.
  if (!peaks_) return {planned_bytes_, planned_bytes_, planned_bytes_, host_bytes_, disk_bytes_};
  const CachingStatistics s = *std::exchange(peaks_, std::nullopt);
  return {s.allocated.peak, s.active.peak, s.reserved.peak, host_bytes_, disk_bytes_, s.retries};
}

std::optional<FilePrefix> Recorder::Sync() {
  if (!metrics_) return std::nullopt;
  if (tensorboard_) tensorboard_->Sync();
  return metrics_->Sync();
}

double Recorder::Pause() {
  meter_->Pause();
  return Now();
}

void Recorder::Continue(const PauseRecord& record) {
  elsewhere_ += record.evaluation + record.sampling + record.checkpoint;
  Write(record);
  meter_->Continue();
}

void Recorder::Report(const std::string& where) {
  log_->Info(where);
  console_.Above([&] { std::cerr << where << std::endl; });
}

bool Recorder::LostItsReader() {
  if (!first() || job_.console == nullptr || job_.console->good()) return lost_reader_;
  if (std::exchange(console_failed_, true)) return lost_reader_;
  lost_reader_ = job_.reader_gone && job_.reader_gone();
  log_->Warning(std::string("the console cannot be written any more; what would be said there ") +
                "is here alone" + (lost_reader_ ? ". Its reader has gone: stopping" : ""));
  return lost_reader_;
}

// ", 1.5k tok/s": over all that has passed, evaluations and saves included.
std::string Recorder::RateOfAll(int64_t step) const {
  const double seconds = Now() - began_;
  if (seconds <= 0) return "";
  if (all_tokens_ > 0) return ", " + HumanCount(all_tokens_ / seconds) + " tok/s";
  const int64_t samples = (step - first_step_) * recipe_.train.global_batch_size;
  return ", " + HumanCount(static_cast<double>(samples) / seconds) + " samples/s";
}

void Recorder::SayDone(int64_t step, bool early) {
  std::string line = "done: " + std::to_string(step - first_step_) +
                     (step - first_step_ == 1 ? " step, " : " steps, ") +
                     HowMany((step - first_step_) * recipe_.train.global_batch_size,
                             logged_targets_ - first_targets_) +
                     " in " + HumanDuration(Now() - began_) + RateOfAll(step);
  for (const auto& [name, loss] : evaluations_) {
    line += ", eval " + name + (name.empty() ? "" : " ") + "loss " + FixedPoint(loss, 4);
  }
  console_.Line(line);
  // A launcher's path of the program is nobody's to type.
  std::string program = job_.command_line.empty() ? "/" : job_.command_line.front();
  if (program.starts_with("/")) program = "fsdp-train";
  const std::optional<std::string>& family = recipe_.model.family;
  const bool exports = !family || !FindFamily(*family)->hf_types().empty();
  std::string checkpoint = saved_;
  const auto best = early ? FindBestCheckpoint(directory_->checkpoints()) : std::nullopt;
  if (best) {
    console_.Line(DescribeBest(*best) + "; the newest is " + saved_);
    checkpoint = *best;
  }
  for (const std::string& next :
       NextCommands(program, directory_->path, checkpoint, speech_, exports)) {
    console_.Line("next: " + next);
  }
}

void Recorder::Finish(const char* reason, int64_t step, const std::string& early) {
  Write(EndRecord{reason, early});
  Sync();
  if (first() && step > first_step_ && std::string_view(reason) == "done") {
    SayDone(step, !early.empty());
  }
  log_->Info(std::string(reason) + " at step " + std::to_string(step));
}

void Recorder::Stopped() {
  if (log_) log_->Info(EarlyStop::kReason);
  RecordEnd("stopped");
}

void Recorder::Failed(const std::string& reason) {
  if (log_) log_->Error(reason);
  RecordEnd(reason);
}

void Recorder::RecordEnd(const std::string& reason) {
  try {
    Write(EndRecord{reason, ""});
  } catch (const Error&) {
  }
}

}  // namespace fsdp
