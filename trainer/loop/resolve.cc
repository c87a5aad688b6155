#include "trainer/loop/resolve.h"

#include <cstdint>
#include <string>

#include "trainer/engine/plan.h"
#include "trainer/engine/plan_cures.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/loop/choice.h"
#include "trainer/loop/run_directory.h"
#include "trainer/loop/setup.h"
#include "trainer/nn/model.h"
#include "trainer/observe/build_info.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/recipe/resume.h"

namespace fsdp {
namespace {

void ResolveModel(const Recipe& recipe, ResolvedRun& run) {
  const Recipe with = WithDropoutsOfRun(recipe);
  run.shape = ShapeFor(with);
  *run.recipe = WithShape(with, run.shape);
  run.model = BuildModel(*run.recipe, run.shape);
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
  run.hosts = HostsOf(place);
  const bool ask = place.has_peers() && place.job->find_ranks_on_cores != nullptr;
  run.ranks_on_cores = ask ? place.job->find_ranks_on_cores() : place.local_world;
  run.threads = place.threads > 0 ? place.threads
                                  : ThreadsFor(*run.recipe, place.local_world, run.ranks_on_cores);
  run.options = SessionOptionsFor(*run.recipe, run.hosts, run.threads);
  run.options.train = place.trains;
  run.options.predict = place.predicts;
  if (place.trains) run.recipe->Refuse(BatchNormConflicts(*run.recipe, *run.model, place.world));
  run.mesh = MeshFor(run.options.executor, place.rank, place.world, run.hosts.ByHost());
}

// The data decides how long a run of epochs is.
void ResolveData(ResolvedRun& run) {
  const Recipe& recipe = *run.recipe;
  run.data = OpenData(recipe, run.shape, run.mesh.data_size(),
                      static_cast<uint64_t>(recipe.run.seed), recipe.data.valid, *run.place.data);
  *run.recipe = WithSteps(recipe, *run.data);
  run.options.lr = LrScheduleFor(*run.recipe);
}

}  // namespace

ResolvedRun ResolveUnplanned(const Recipe& recipe, const Place& place) {
  ResolvedRun run;
  run.place = place;
  run.target = place.target;
  run.multiprocessors = place.multiprocessors;
  ResolveModel(recipe, run);
  ResolveRanks(run);
  Choosing choosing{run};
  MakeAll(Choice::When::kBeforeThePlan, choosing);
  if (place.data) ResolveData(run);
  return run;
}

ResolvedRun Resolve(const Recipe& recipe, const Place& place) {
  ResolvedRun run = ResolveUnplanned(recipe, place);
  run.plan = PlanRun(*run.model, run.options, place.world, place.local_world, run.target);
  return run;
}

void RequireFit(const ResolvedRun& run) {
  RequireFit(*run.model, run.options, run.plan, run.target);
}

Labels LabelsOf(const ResolvedRun& run) {
  Labels labels;
  for (const auto& [key, value] : SharedSettings(*run.recipe)) {
    labels.emplace_back("recipe: " + key, value);
  }
  const DeviceType device = run.target.device;
  const bool bf16 = run.recipe->fsdp.mixed_precision.param_dtype == DType::kBFloat16;
  labels.insert(labels.end(),
                {{"schedule", std::to_string(run.plan.schedule_hash)},
                 {"build", std::string(BuildVersion()) + " " + std::string(BuildGitHash())},
                 {"device", Name(device)},
                 {"kernels", device == DeviceType::kCpu ? OrderOfSums(ThisIsa(), bf16) : "cuda"}});
  for (const Chosen& chosen : run.chosen) {
    labels.insert(labels.end(), chosen.labels.begin(), chosen.labels.end());
  }
  labels.emplace_back("data", std::to_string(run.data->Hash()));
  return labels;
}

}  // namespace fsdp
