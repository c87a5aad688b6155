#include "trainer/simulate/short_step.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "trainer/recipe/recipe.h"
#include "trainer/runtime/operation.h"
#include "trainer/runtime/stream.h"
#include "trainer/simulate/price_list.h"
#include "trainer/simulate/step_floor.h"

namespace fsdp {
namespace {

// Micro-batches whose step's middle is like that of any longer one.
constexpr int kFew = 4;

bool HasMany(const ResolvedRun& run) { return run.options.executor.micro_batches > kFew + 1; }

// of(), of the run with so many micro-batches.
template <typename Of>
auto With(ResolvedRun& run, int count, const Of& of) {
  SessionOptions few = run.options;
  few.executor.micro_batches = count;
  few.global_batch_size = count * few.executor.micro_batch_size * run.mesh.data_size();
  std::swap(run.options, few);
  auto found = of();
  std::swap(run.options, few);
  return found;
}

double After(double before, double last, double more) { return last + (last - before) * more; }

StepBound After(const StepBound& before, const StepBound& last, double more) {
  return {After(before.floor_s, last.floor_s, more), After(before.least_s, last.least_s, more)};
}

Simulation After(const Simulation& before, const Simulation& last, double more) {
  Simulation all;
  for (double Simulation::*const number :
       {&Simulation::step_s, &Simulation::host_s, &Simulation::hardware_flops,
        &Simulation::device_s, &Simulation::link_s}) {
    all.*number = After(before.*number, last.*number, more);
  }
  for (double StepTimes::*const part :
       {&StepTimes::data, &StepTimes::forward, &StepTimes::recompute, &StepTimes::backward,
        &StepTimes::optimizer, &StepTimes::communication, &StepTimes::offload}) {
    all.times.*part = After(before.times.*part, last.times.*part, more);
  }
  return all;
}

// of() of the run, or what its values at few micro-batches say of it.
template <typename Of>
auto FromFew(ResolvedRun& run, const Of& of) {
  if (!HasMany(run)) return of();
  const auto before = With(run, kFew - 1, of);
  const auto last = With(run, kFew, of);
  return After(before, last, static_cast<double>(run.options.executor.micro_batches - kFew));
}

}  // namespace

bool IsShortened(const ResolvedRun& run) {
  return HasMany(run) && run.options.executor.buffers == FsdpOptions::Buffers::kSlots;
}

StepBound BoundOf(ResolvedRun& run, const Hardware& hardware) {
  const PriceList prices = PricesOf(run, hardware);
  return FromFew(run, [&] {
    double compute = 0;
    const StepFloor floor =
        FloorOf(run, hardware, [&](const Operation& operation, const Stream& stream) {
          if (stream.name() != "compute") return;
          compute += prices.WorkOf(operation, stream.name(), run.threads).seconds;
        });
    return StepBound{floor.Seconds(), std::max(floor.Seconds(), compute)};
  });
}

Simulation SimulateShort(ResolvedRun& run, const Hardware& hardware) {
  Simulation found = FromFew(run, [&] { return Simulate(run, hardware); });
  // The last micro-batches may be short of samples.
  found.samples = static_cast<double>(run.recipe->train.global_batch_size);
  return found;
}

RunPlan PlanShort(ResolvedRun& run) {
  const auto plan = [&] {
    return PlanRun(*run.model, run.options, run.place.world, run.place.local_world, run.target);
  };
  return IsShortened(run) ? With(run, kFew, plan) : plan();
}

std::vector<Cure> CuresOf(ResolvedRun& run, const std::function<bool()>& stop) {
  const auto cures = [&] {
    return FittingCures(*run.model, run.options, run.plan, run.target, MemoryLimits(), stop);
  };
  return IsShortened(run) ? With(run, kFew, cures) : cures();
}

}  // namespace fsdp
