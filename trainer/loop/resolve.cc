#include "trainer/loop/resolve.h"

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/engine/plan.h"
#include "trainer/loop/attention_choice.h"
#include "trainer/loop/gpu_room.h"
#include "trainer/loop/gpu_transport.h"
#include "trainer/loop/products.h"
#include "trainer/loop/run_directory.h"
#include "trainer/loop/setup.h"
#include "trainer/loop/share_choice.h"
#include "trainer/observe/build_info.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/resume.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

void ResolveModel(const Recipe& recipe, ResolvedRun& run) {
  const Recipe with = WithDropoutsOfRun(recipe);
  run.shape = ShapeFor(with);
  run.recipe = WithShape(with, run.shape);
  run.model = BuildModel(run.recipe, run.shape);
  if (run.place.trains) return;
  for (const ModelSegment& segment : run.model->segments()) {
    for (Parameter* const parameter : segment.parameters) parameter->Freeze();
  }
}

// All ranks ask, whatever their strategy: ranks that disagree about it find out later.
HostPlacement HostsOf(const Place& place) {
  if (place.job == nullptr) return HostPlacement::InOrder(place.world, place.local_world);
  const bool ask = place.has_peers() && place.job->find_hosts != nullptr;
  return ask ? place.job->find_hosts() : HostPlacement::InOrder(place.world, place.world);
}

void ResolveRanks(ResolvedRun& run) {
  const Place& place = run.place;
  run.threads = place.threads > 0 ? place.threads : ThreadsFor(run.recipe, place.local_world);
  run.hosts = HostsOf(place);
  run.options = SessionOptionsFor(run.recipe, run.hosts, run.threads);
  run.options.train = place.trains;
  run.mesh = MeshFor(run.options.executor, place.rank, place.world, run.hosts.ByHost());
}

// The device that updates are timed on. Throws ConfigError where it is not here.
ChosenDevice DeviceToMeasure(const ResolvedRun& run) {
  const Place& place = run.place;
  if (place.device || run.recipe.fsdp.cpu_offload.optimizer_share) {
    return place.device.value_or(ChosenDevice());
  }
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(run.recipe.Mistake(
        "fsdp.cpu_offload.optimizer_share",
        "`auto` is measured, and " + why +
            ": give the number that a run there has found, or one to plan with"));
  };
  if (!place.described.empty()) refuse(place.described + " is another machine");
  if (run.target.device == DeviceType::kCpu) return {};
  try {
    return ChooseDevice(WantedDevice::kCuda, /*local_rank=*/0, /*local_world=*/1);
  } catch (const Error& error) {
    refuse(std::string("no GPU can be used here (") + error.what() + ")");
  }
  return {};
}

// Finds what peers share, and what their collectives go over.
void AskPeers(const Job& job, ResolvedRun& run) {
  const std::vector<std::string> gpus = ExchangeGpus(job);
  run.sharers = SharersOf(gpus, job);
  run.target = RoomToBegin(job.device, run.sharers);
  run.transport = FindGpuTransport(gpus, job);
}

void AskMachine(ResolvedRun& run) {
  const Place& place = run.place;
  if (place.device) run.library = FindGemmLibrary(place.device->type);
  if (place.job != nullptr) AskPeers(*place.job, run);
  run.attention =
      place.device ? AttentionOf(run.recipe, run.shape, *place.device)
                   : FoundAttention{AttentionToPlan(run.recipe, run.shape, run.target.device), ""};
  run.options.executor.attention = run.attention.backend;
  run.share = place.job != nullptr
                  ? ResolveShare(*place.job, run.target, *run.model, run.recipe, run.options)
                  : ResolveShareToPlan(DeviceToMeasure(run), place.world, place.local_world,
                                       run.target, *run.model, run.recipe, run.options);
}

// The data decides how long a run of epochs is.
void ResolveData(ResolvedRun& run) {
  const Recipe& recipe = run.recipe;
  run.data = OpenData(recipe, run.shape, run.mesh.data_size(),
                      static_cast<uint64_t>(recipe.run.seed), recipe.data.valid, *run.place.data);
  run.recipe = WithSteps(recipe, *run.data);
  run.options.lr = LrScheduleFor(run.recipe);
}

}  // namespace

ResolvedRun Resolve(const Recipe& recipe, const Place& place) {
  ResolvedRun run;
  run.place = place;
  run.target = place.target;
  ResolveModel(recipe, run);
  ResolveRanks(run);
  AskMachine(run);
  if (place.data) ResolveData(run);
  run.plan = PlanRun(*run.model, run.options, place.world, place.local_world, run.target);
  return run;
}

void RequireFit(const ResolvedRun& run) {
  RequireFit(*run.model, run.options, run.plan, run.target);
}

Labels LabelsOf(const ResolvedRun& run) {
  Labels labels;
  for (const auto& [key, value] : SharedSettings(run.recipe)) {
    labels.emplace_back("recipe: " + key, value);
  }
  const DeviceType device = run.target.device;
  labels.insert(
      labels.end(),
      {{"schedule", std::to_string(run.plan.schedule_hash)},
       {"build", std::string(BuildVersion()) + " " + std::string(BuildGitHash())},
       {"device", Name(device)},
       {"kernels", device == DeviceType::kCpu ? IsaName() : "cuda"},
       {"cuBLASLt", GpuLibraryVersionText(run.library.version)},
       {"NCCL", run.transport.nccl ? VersionText(*run.transport.nccl) : "none"},
       {"attention",
        run.attention.backend == AttentionBackend::kOwn ? "own kernels" : run.attention.name},
       {"data", std::to_string(run.data->Hash())}});
  return labels;
}

}  // namespace fsdp
