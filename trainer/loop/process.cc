#include "trainer/loop/process.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/family.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/hosts/hosts_communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/comm/shm/shm_communicator.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/comm/store/tcp_store.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/cores.h"
#include "trainer/core/terminal.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/launch/environment.h"
#include "trainer/launch/exit_words.h"
#include "trainer/launch/job_secret.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/loop/evaluate.h"
#include "trainer/loop/place.h"
#include "trainer/loop/plan_heading.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/loop/run_directory.h"
#include "trainer/loop/setup.h"
#include "trainer/loop/train.h"
#include "trainer/observe/provenance.h"
#include "trainer/observe/stoppable_output.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/near_gpu.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

StoreAccess AccessFor(const RankEnvironment& environment) {
  const JobSecret secret = ReadJobSecret(environment);
  if (secret.open && environment.rank == 0 &&
      environment.local_world_size < environment.world_size) {
    std::cerr << "warning: no secret: whoever reaches the port of the job's store on "
              << environment.master_addr << " may join it. Set " << kSecretVariable
              << " to the same secret on all hosts, or give launch a --rdzv-secret-file\n";
  }
  return {secret.text, environment.restart_count};
}

// Polling steals a core from whoever computes, so only while every busy thread has one of its own:
// a rank's compute threads and one stream that waits for a peer.
int SpinsFor(int ranks, int threads) {
  return ranks * (threads + 1) <= DescribeHost().cores ? 2000 : 0;
}

ChosenDevice DeviceFor(const Recipe& recipe, const RankEnvironment& environment) {
  const WantedDevice wanted = recipe.run.device == RunRecipe::Device::kAuto   ? WantedDevice::kAuto
                              : recipe.run.device == RunRecipe::Device::kCuda ? WantedDevice::kCuda
                                                                              : WantedDevice::kCpu;
  return ChooseDevice(wanted, environment.local_rank, environment.local_world_size);
}

// The standard streams of a rank, which a stop gets through whoever reads.
struct RankOutput {
  explicit RankOutput(const StopSignal& signals)
      : out(STDOUT_FILENO, [&] { return signals.stop_requested(); }),
        errors(STDERR_FILENO, [&] { return signals.stop_requested(); }) {
    std::signal(SIGPIPE, SIG_IGN);  // Without this a reader that leaves would end the run.
  }

  StoppableOutput out, errors;
  const StreamInto cout{std::cout, out}, cerr{std::cerr, errors};
};

// Whether the reader of our stdout has closed its end.
bool ReaderGone() {
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// Shared memory where all ranks of a group are on one host; otherwise also TCP between hosts. The
// ranks find out where they are, whatever the launcher says.
// Says how in `words`.
MeshCommunicators::Connect Transport(Store& store, const RankEnvironment& environment,
                                     const HostPlacement& placement, const CommOptions& options,
                                     std::string& words) {
  const int rank = environment.rank, size = environment.world_size;
  const std::string address =
      placement.hosts() == 1 ? ""
                             : AgreeOnAddress(store, "job", rank, size, environment.master_addr);
  words = placement.hosts() == 1
              ? "all ranks on this host: shared memory"
              : std::to_string(placement.hosts()) + " hosts: TCP over " + InterfaceOf(address) +
                    " (" + address + ") between them, shared memory in each";
  return [&store, placement, address, options](const std::string& name, const RankGroup& group) {
    return placement.Among(group.ranks()).hosts() == 1
               ? CreateShmCommunicator(store, name, group, options)
               : CreateHostsCommunicator(store, name, group, placement, address, options);
  };
}

const auto process_started = std::chrono::steady_clock::now();

// The earlier of run.max_time and the end of Slurm's job.
std::optional<std::chrono::steady_clock::time_point> EndOfTime(const Recipe& recipe) {
  using std::chrono::seconds, std::chrono::steady_clock, std::chrono::system_clock;
  std::optional<steady_clock::time_point> end;
  if (recipe.run.max_time) end = process_started + seconds(*recipe.run.max_time);
  if (const std::optional<int64_t> slurm = ReadJobEndTime()) {
    const auto left = system_clock::time_point(seconds(*slurm)) - system_clock::now();
    const auto then = steady_clock::now() + left;
    end = end ? std::min<steady_clock::time_point>(*end, then) : then;
  }
  return end;
}

// The words for a second stop, which waits for nothing.
void SetLastWords(const Recipe& recipe, StopSignal& signals) {
  std::string otherwise = "there is no checkpoint to go on from";
  try {
    otherwise = GoesOnFrom(recipe);
  } catch (const std::exception&) {  // The run itself says it.
  }
  signals.SetLastWords(RunDirectory{recipe.run.Directory()}.checkpoints(), otherwise);
}

// One rank of each host says whom it waits for.
SayWaiting WhoIsMissing(const RankEnvironment& environment, int port) {
  if (environment.local_rank != 0 && environment.rank != 0) return {};
  const std::string where = environment.master_addr + ":" + std::to_string(port);
  return {[where](const std::vector<int>& ranks, const std::string& refused) {
    std::cerr << "waiting for " + RanksInWords(ranks) + " at " + where + refused + "\n"
              << std::flush;
  }};
}

// A rank stops joining where it is told to stop, or where the launcher knows of one that has left.
GiveUp AskSignals(const StopSignal& signals) {
  if (signals.stop_requested()) return {EarlyStop::kReason, std::nullopt};
  const std::optional<RankLeft> left = signals.rank_left();
  if (!left) return {};
  if (left->code == static_cast<int>(ExitCode::kStopped)) return {EarlyStop::kReason, left->rank};
  return {"rank " + std::to_string(left->rank) +
              " has left before all had met: " + HowItEnded(left->code),
          left->rank};
}

// Lines, ended.
std::string NotesOf(const Recipe& recipe, int world) {
  std::string lines;
  for (const std::string& note : recipe.notes) lines += Printable(note) + "\n";
  for (const std::string& line : Advice(recipe, world)) lines += "warning: " + line + "\n";
  return lines;
}

void CheckPlace(const Recipe& recipe, int world, int local_world, int max_restarts) {
  recipe.Refuse(PlaceConflicts(recipe, world, local_world, max_restarts));
}

// Sets what NCCL is to know of the job, where the user has not. Before the rank's threads begin.
void TellNccl(const RankEnvironment& environment) {
  // Among several networks NCCL takes the first by its own order; the job's is known to connect.
  const std::string interface = InterfaceTowards(environment.master_addr);
  const std::string only = "=" + interface;
  if (!interface.empty()) setenv("NCCL_SOCKET_IFNAME", only.c_str(), /*overwrite=*/0);
  const std::string host = NamedHost();
  if (!host.empty()) setenv("NCCL_HOSTID", host.c_str(), /*overwrite=*/0);
}

// Before the rank's threads begin, which stay on its cores.
ChosenDevice TakeDevice(const Recipe& recipe, const RankEnvironment& environment) {
  ChosenDevice device = DeviceFor(recipe, environment);
  if (device.type == DeviceType::kCuda) {
    device.note += StayNearGpu(device.pci);
    if (environment.world_size > 1) TellNccl(environment);
  }
  return device;
}

// Blocks until all ranks are there.
std::unique_ptr<Store> JoinStore(const Recipe& recipe, const RankEnvironment& environment,
                                 const StopSignal& signals) {
  if (environment.world_size == 1) return std::make_unique<MemoryStore>(recipe.run.timeout_s);
  std::optional<int> port;
  if (recipe.run.store_port) port = static_cast<int>(*recipe.run.store_port);
  const int store_port = StorePort(environment, port);
  return JoinTcpStore(
      environment.master_addr, store_port, environment.rank, environment.world_size,
      recipe.run.timeout_s, AccessFor(environment), [&] { return AskSignals(signals); },
      WhoIsMissing(environment, store_port));
}

// `work` as one rank of the job that the environment names.
ExitCode RunAsRank(const Recipe& recipe, const RankEnvironment& environment,
                   const std::vector<std::string>& command_line, StopSignal& signals,
                   const std::function<ExitCode(const Job&)>& work) {
  const ChosenDevice device = TakeDevice(recipe, environment);
  std::unique_ptr<Store> store;
  Job job;
  job.rank = environment.rank;
  job.world = environment.world_size;
  job.local_world = environment.local_world_size;
  job.device = device;
  std::optional<HostPlacement> hosts;
  job.find_hosts = [&] {
    if (!hosts) hosts = FindHosts(*store, "job", job.rank, job.world);
    return *hosts;
  };
  std::optional<int> on_cores;
  job.find_ranks_on_cores = [&] {
    if (!on_cores) {
      on_cores = RanksOnCores(*store, "job", job.rank, job.find_hosts(), AllowedCores());
      if (!NamedHost().empty()) on_cores = job.local_world;  // One machine stands for several.
    }
    return *on_cores;
  };
  MeshCommunicators::Connect transport;
  job.connect = [&](const std::string& name, const RankGroup& group) {
    if (!transport) {
      CommOptions options;
      options.timeout_s = recipe.run.timeout_s;
      const int ranks = on_cores.value_or(job.local_world);
      options.spins = SpinsFor(ranks, ThreadsFor(recipe, job.local_world, ranks));
      transport = Transport(*store, environment, job.find_hosts(), options, job.transport);
    }
    return transport(name, group);
  };
  job.place = Describe(environment);
  job.restart = environment.restart_count;
  job.command_line = command_line;
  job.stop_requested = [&] { return signals.stop_requested(); };
  job.take_save_request = [&] { return signals.TakeCheckpointRequest(); };
  job.take_report_request = [&] { return signals.TakeReportRequest(); };
  if (environment.rank == 0) job.ends = EndOfTime(recipe);
  job.console = &std::cout;
  job.reader_gone = ReaderGone;
  store = JoinStore(recipe, environment, signals);
  job.store = store.get();
  try {
    const ExitCode code = work(job);
    store->Leave();
    return code;
  } catch (const std::exception& error) {  // Before the ranks could tell one another.
    if (store->FailureReason().empty()) {
      store->Fail("rank " + std::to_string(job.rank) + ": " + error.what());
    }
    throw;
  }
}

std::string HeadingOf(const ResolvedRun& run, const std::optional<Hardware>& hardware) {
  return PlanHeading(*run.recipe, run.shape, *run.model, run.place.world, run.place.local_world,
                     run.target.device, hardware);
}

// Lines, ended; or nothing.
std::string WhatRanksDo(const ResolvedRun& run) {
  std::string lines;
  for (const std::string& line : WhatIsQuantized(*run.recipe, *run.model, run.options, run.hosts)) {
    lines += line + "\n";
  }
  if (const std::string line = run.multiprocessors.Text(); !line.empty()) lines += line + "\n";
  return lines;
}

// Checks what can be checked before a run begins. On the sim device no machine is asked.
ExitCode DryRun(const Recipe& recipe, const RankEnvironment& environment) {
  const bool here = recipe.run.device != RunRecipe::Device::kSim;
  const ResolvedRun run =
      Resolve(recipe, PlaceOfDryRun(recipe, environment.rank, environment.world_size,
                                    environment.local_world_size,
                                    here ? DeviceFor(recipe, environment) : ChosenDevice()));
  CheckRunDirectory(*run.recipe, run.data->files);
  CheckInitialWeights(recipe);
  if (environment.rank == 0) {
    std::cout << HeadingOf(run, std::nullopt) << NotesOf(recipe, environment.world_size)
              << WhatRanksDo(run) << PlanToText(run.plan) << std::flush;
  }
  RequireFit(run);
  if (here) TakeDisk(run.options.executor, run.plan.memory);  // And gives it back.
  return ExitCode::kDone;
}

}  // namespace

std::vector<ShapeConflict> PlaceConflicts(const Recipe& recipe, int world, int local_world,
                                          int max_restarts) {
  std::vector<ShapeConflict> conflicts = WorldConflicts(recipe, world, local_world);
  if (recipe.run.device == RunRecipe::Device::kCuda && !FindGpus().built) {
    conflicts.push_back(
        {{"run.device"},
         "`cuda`, and this program was built without it: build it with --config=cuda, or set "
         "`auto` or `cpu`"});
  }
  const ResumeRecipe::Kind resume = recipe.checkpoint.resume.kind;
  if (max_restarts > 0 && resume != ResumeRecipe::Kind::kAuto) {
    const bool none = resume == ResumeRecipe::Kind::kNone;
    conflicts.push_back(
        {{"checkpoint.resume"},
         std::string(none ? "none" : "one checkpoint") +
             ", but the launcher may restart the ranks (--max-restarts " +
             std::to_string(max_restarts) + "): a restarted run would " +
             (none ? "not go on" : "go back to it again, and lose what it has done since") +
             ". Set it to auto, or --max-restarts to 0"});
  }
  return conflicts;
}

std::vector<ShapeConflict> PlaceConflictsHere(const Recipe& recipe) {
  std::optional<RankEnvironment> here;
  try {
    here = ReadRankEnvironment();
  } catch (const ConfigError&) {  // No mistake of the recipe: the run says it.
    return {};
  }
  return PlaceConflicts(recipe, here->world_size, here->local_world_size, here->max_restarts);
}

void CheckTraining(const Recipe& recipe, int world, int local_world, int max_restarts) {
  CheckPlace(recipe, world, local_world, max_restarts);
  BuildModel(recipe, ShapeFor(recipe));
}

std::string HowToGoOn(const Recipe& recipe) {
  Recipe newest = recipe;
  newest.checkpoint.resume = {};
  const bool automatic = recipe.checkpoint.resume.kind == ResumeRecipe::Kind::kAuto;
  try {
    if (!GoesOn(newest) || automatic) return Printable(GoesOnFrom(newest));
    return Printable(GoesOnFrom(newest)) + ", with checkpoint.resume: auto";
  } catch (const std::exception&) {
    return "";
  }
}

void CheckInitialWeights(const Recipe& recipe) {
  if (!recipe.model.init_from || GoesOn(recipe)) return;
  const ModelShape shape = ShapeFor(recipe);  // Its words on config.json come first, as in a run.
  RequireForms(OpenInitialWeights(recipe.model, FindHeadToDraw(shape, recipe.model).head),
               *BuildModel(recipe, shape));
}

ExitCode TrainProcess(const Recipe& recipe, const std::vector<std::string>& command_line,
                      bool dry_run, StopSignal& signals) {
  const RankEnvironment environment = ReadRankEnvironment();
  CheckPlace(recipe, environment.world_size, environment.local_world_size,
             environment.max_restarts);
  if (dry_run || recipe.run.device == RunRecipe::Device::kSim) {
    // There is nothing to save and nobody to tell: a stop ends it at once.
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_DFL);
    return signals.stop_requested() ? ExitCode::kStopped : DryRun(recipe, environment);
  }

  const RankOutput output(signals);
  if (environment.rank == 0) SetLastWords(recipe, signals);
  try {
    return RunAsRank(recipe, environment, command_line, signals,
                     [&](const Job& job) { return TrainRank(recipe, job); });
  } catch (const EarlyStop& stop) {
    if (environment.rank == 0) {
      std::cout << stop.what() << ": " << Printable(GoesOnFrom(recipe)) << std::endl;
    }
    return stop.code();
  }
}

ExitCode EvaluateProcess(Evaluation evaluation, const std::vector<std::string>& command_line,
                         StopSignal& signals) {
  const RankEnvironment environment = ReadRankEnvironment();
  const std::string sharded = ShardFor(environment.world_size, evaluation.recipe);
  CheckPlace(evaluation.recipe, environment.world_size, environment.local_world_size,
             /*max_restarts=*/0);
  if (evaluation.recipe.run.device == RunRecipe::Device::kSim) {
    throw ConfigError(evaluation.recipe.Mistake(
        "run.device", "sim computes no loss: set `auto`, `cpu` or `cuda`"));
  }
  const RankOutput output(signals);
  if (environment.rank == 0 && !sharded.empty()) {
    (evaluation.json ? std::cerr : std::cout) << sharded << std::endl;
  }
  try {
    const ExitCode code = RunAsRank(evaluation.recipe, environment, command_line, signals,
                                    [&](const Job& job) { return EvaluateRank(evaluation, job); });
    if (const int error = output.out.error()) {
      if (signals.stop_requested()) throw EarlyStop();
      throw DeviceError("fsdp-train: stdout: " + std::string(std::strerror(error)));
    }
    return code;
  } catch (const EarlyStop& stop) {
    if (environment.rank == 0) std::cerr << "stopped by a signal before the end" << std::endl;
    return stop.code();
  }
}

void CompareHeldOut(const std::string& checkpoint, const std::string& exported) {
  const std::string from = ResolveCheckpoint(checkpoint);
  const std::string text = ReadCheckpointMeta(from).recipe;
  const Recipe recipe = ParseRecipe({{from + "/manifest.json, recipe", text}});
  if (std::holds_alternative<std::monostate>(recipe.data.valid)) return;
  StopSignal signals;
  std::vector<double> before, after;
  const auto tell = [&](const EvaluationFlags& flags, std::vector<double>* losses) {
    Evaluation evaluation = PrepareEvaluation(flags);
    evaluation.on_loss = [losses](double loss) { losses->push_back(loss); };
    EvaluateProcess(std::move(evaluation), {}, signals);
  };
  tell({.checkpoint = from, .config = {}, .overrides = {}, .predictions = ""}, &before);
  tell({.checkpoint = exported, .config = {}, .overrides = {}, .predictions = "", .by = from},
       &after);
  for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    std::cout << "merged, the loss of set " << i + 1 << " is "
              << FixedPoint(std::abs(after[i] - before[i]), 4)
              << (after[i] < before[i] ? " lower" : " higher") << std::endl;
  }
}

ExitCode PlanProcess(const Recipe& recipe, int world, int local_world,
                     const std::optional<Hardware>& hardware, bool json, ProgressLine& line,
                     const EstimateRun& estimate) {
  CheckWorld(recipe, world, local_world);
  line.Do("planning the memory of a step");
  ResolvedRun run = Resolve(recipe, PlaceToPlan(recipe, world, local_world, hardware));
  const std::optional<StepEstimate> step = estimate ? estimate(run) : std::nullopt;
  line.End();
  const std::string beside =
      NotesOf(recipe, world) + WhatRanksDo(run) +
      (hardware ? NoteOnKernels(*hardware, recipe.fsdp.mixed_precision.param_dtype) : "");
  if (json) {  // stdout gets the plan alone.
    std::cerr << beside;
    std::cout << PlanToJson(run.plan, step) << "\n" << std::flush;
    return run.plan.fits() ? ExitCode::kDone : ExitCode::kMemory;
  }
  std::cout << HeadingOf(run, hardware) << beside << PlanToText(run.plan)
            << (step ? EstimateToText(*step, run.plan) : "") << std::flush;
  const ProgressLine cures("looking for settings that fit");
  RequireFit(run);
  return ExitCode::kDone;
}

}  // namespace fsdp
