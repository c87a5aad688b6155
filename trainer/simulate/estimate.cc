#include "trainer/simulate/estimate.h"

#include "trainer/core/errors.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/simulate/step_floor.h"

namespace fsdp {

StepEstimate EstimateOf(const ResolvedRun& run, const Hardware& hardware,
                        const Simulation& simulation) {
  const double step = simulation.step_s;
  const auto rate = [&](double work) { return step > 0 ? work / step : 0; };
  const StepTimes& times = simulation.times;
  StepEstimate estimate{.step_time_s = step,
                        .samples_per_s = rate(simulation.samples),
                        .targets_per_s = rate(simulation.targets),
                        .tflops_per_device = rate(simulation.model_flops) / run.place.world * 1e-12,
                        .hardware_tflops_per_device = rate(simulation.hardware_flops) * 1e-12,
                        .exposed_s = times.communication,
                        .floor_s = FloorOf(run, hardware).Seconds()};
  estimate.breakdown = {{"data", times.data},           {"forward", times.forward},
                        {"recompute", times.recompute}, {"backward", times.backward},
                        {"optimizer", times.optimizer}, {"communication", times.communication},
                        {"offload", times.offload},     {"host", simulation.host_s}};
  estimate.calibrated_on = PointsSeen(hardware);
  return estimate;
}

std::optional<Simulation> SimulateAndPlan(ResolvedRun& run, const Hardware& hardware,
                                          const SimulateOptions& options) {
  try {
    Simulation simulation = Simulate(run, hardware, options);
    if (simulation.memory) {
      MemoryPlan& memory = run.plan.memory;
      memory.arenas[static_cast<int>(MemoryPlace::kDevice)] +=
          simulation.memory->reserved.peak - memory.caching->reserved.peak;
      memory.caching = simulation.memory;
      run.plan.simulated_fits = true;
    }
    return simulation;
  } catch (const MemoryError&) {
    run.plan.simulated_fits = false;
    return std::nullopt;
  }
}

}  // namespace fsdp
