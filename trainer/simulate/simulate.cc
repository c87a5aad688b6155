#include "trainer/simulate/simulate.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/batch.h"
#include "trainer/core/errors.h"
#include "trainer/core/terminal.h"
#include "trainer/core/units.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/session.h"
#include "trainer/engine/step_memory.h"
#include "trainer/engine/step_operations.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/step_position.h"
#include "trainer/loop/process.h"
#include "trainer/nn/model.h"
#include "trainer/observe/chrome_trace.h"
#include "trainer/ops/tiled_attention.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/sim/sim_device.h"
#include "trainer/simulate/network.h"
#include "trainer/simulate/price_list.h"
#include "trainer/simulate/step_floor.h"

namespace fsdp {
namespace {

// When a rank comes to each of its collectives, by stream.
using Arrivals = std::map<std::string, std::vector<double>>;

struct RankOfJob {
  double slower = 1;            // How many times, than the machine says.
  Arrivals* comes = nullptr;    // Takes its arrivals. Null: nobody asks.
  const Arrivals* others = {};  // It waits for these. Null: for nobody.
};

SimModel ModelOf(const Hardware& hardware, const PriceList& prices,
                 std::function<SimWork(const Operation&, const Stream&)> price) {
  return {.price = std::move(price),
          .overlaps = prices.Overlaps(),
          .s_per_enqueue = hardware.host.operation_s,
          .s_per_event = hardware.host.event_s,
          .s_per_wait = hardware.host.wait_s,
          .s_per_block = hardware.host.allocation_s,
          .s_per_segment = hardware.host.segment_s,
          .s_per_segment_byte = hardware.host.segment_s_per_byte};
}

// Bytes that a caching allocator gets of the device.
std::optional<int64_t> LimitOf(const ResolvedRun& run) {
  std::optional<int64_t> limit = run.options.executor.memory_limit;
  const std::optional<MemoryRoom>& room = run.plan.device_available;
  if (room && (!limit || room->bytes < *limit)) limit = room->bytes;
  return limit;
}

class SimulatedRank {
 public:
  SimulatedRank(const ResolvedRun& run, const Hardware& hardware, const RankOfJob& rank)
      : run_(run),
        rank_(rank),
        prices_(PricesOf(run, hardware)),
        network_(hardware, run.place.world, run.place.local_world,
                 {run.recipe->run.deterministic, run.recipe->fsdp.mixed_precision.sum ==
                                                     FsdpOptions::MixedPrecision::Sum::kExact}),
        device_(ModelOf(hardware, prices_,
                        [this](const Operation& operation, const Stream& stream) {
                          return Price(operation, stream);
                        }),
                /*checker=*/nullptr, run.target.device),
        communicators_(
            MeshFor(run.options.executor, /*rank=*/0, run.place.world),
            run.options.executor.communicators,
            [this](const std::string&, const RankGroup& group) { return Connect(group); }) {
    if (run.options.executor.buffers == FsdpOptions::Buffers::kCaching) {
      memory_ = std::make_unique<CachingBuffers>(device_, LimitOf(run));
    } else {
      memory_ = std::make_unique<PlanRecorder>();
    }
    session_.emplace(device_, *memory_, *run.model, run.options, communicators_);
  }

  Simulation Run(int steps, bool trace) {
    Simulation found;
    Executor& executor = session_->executor();
    executor.MastersWritten();  // As when a run begins.
    if (rank_.comes != nullptr) device_.StartTrace();
    for (int step = 1; step <= steps; ++step) {
      if (step == steps) Follow(trace, found);
      const auto load = [](int, const Batch&) {};
      session_->Train(step, session_->FullTargets(), {}, load, load);
    }
    const StepAccount last = executor.Account(steps - 1);
    found.times = last.times;
    found.memory = last.memory;
    double begin = last.times.begin;
    if (steps > 1) {
      const StepAccount before = executor.Account(steps - 2);
      begin = before.times.end;
      if (found.memory) found.memory->retries -= before.memory->retries;
    }
    found.step_s = last.times.end - begin;
    found.host_s = std::max(0.0, last.times.begin - begin);
    executor.Synchronize();
    if (rank_.comes != nullptr) NoteArrivals();
    if (trace) Keep(begin, last.times.end, found);
    return found;
  }

 private:
  SimWork Price(const Operation& operation, const Stream& stream) {
    SimWork work = prices_.WorkOf(operation, stream.name(), run_.threads, run_.place.local_world);
    if (work.resource == SimResource::kKernels) work.seconds *= rank_.slower;
    return work;
  }

  std::unique_ptr<Communicator> Connect(const RankGroup& group) {
    const Network::Reach reach = network_.ReachOf(group);
    return std::make_unique<SimCommunicator>(
        group, [this, reach](const Stream& stream, const RankGroup&, const CollectiveCall& call) {
          SimWork work = network_.WorkOf(reach, call);
          link_s_ += work.seconds;
          if (rank_.others != nullptr) {
            work.not_before = rank_.others->at(stream.name()).at(calls_[stream.name()]++);
          }
          return work;
        });
  }

  // Follows the last step and finds its parts.
  void Follow(bool trace, Simulation& found) {
    link_s_ = 0;
    if (trace) device_.StartTraceWithHost();
    device_.Observe([this, trace, &found](const Operation& operation, const Stream& stream) {
      for (const KernelCost& kernel : operation.costs) {
        found.hardware_flops += UnmaskedFlops(kernel);
      }
      const SimWork work =
          prices_.WorkOf(operation, stream.name(), run_.threads, run_.place.local_world);
      if (work.resource == SimResource::kKernels) found.device_s += work.seconds;
      found.link_s = link_s_;
      if (trace && memory_->caching() != nullptr) {
        const CachingStatistics& now = memory_->caching()->statistics();
        found.memory_points.push_back(
            {device_.Now(), now.allocated.now, now.active.now, now.reserved.now});
      }
    });
  }

  void NoteArrivals() {
    for (const Span& span : device_.TakeTrace()) {
      for (int kind = 0; kind < kCollectives; ++kind) {
        if (span.name != Name(static_cast<Collective>(kind))) continue;
        (*rank_.comes)[span.stream].push_back(span.begin_s);
      }
    }
  }

  // The spans of the step, as seconds from its begin.
  void Keep(double begin, double end, Simulation& found) {
    const Executor& executor = session_->executor();
    for (Span& span : device_.TakeTrace()) {
      if (span.end_s < begin || span.begin_s > end) continue;
      span.begin_s = std::max(span.begin_s, begin) - begin;
      span.end_s = std::min(span.end_s, end) - begin;
      if (span.tag != 0) {
        const StepPosition at = PositionOf(span.tag);
        found.parts.try_emplace(span.tag,
                                PartOf(at, executor.schedule(at.mode), executor.layout()));
      }
      found.spans.push_back(std::move(span));
    }
    if (memory_->caching() == nullptr) {
      found.memory_points =
          StepMemory(*run_.model, run_.options, run_.place.world, run_.target.device)
              .Over(found.spans, run_.plan.planned());
      return;
    }
    std::vector<MemoryPoint> points;
    for (MemoryPoint& point : found.memory_points) {
      if (point.at_s < begin || point.at_s > end) continue;
      point.at_s -= begin;
      points.push_back(point);
    }
    found.memory_points = std::move(points);
  }

  const ResolvedRun& run_;
  const RankOfJob rank_;
  const PriceList prices_;
  const Network network_;
  SimDevice device_;
  const MeshCommunicators communicators_;
  std::unique_ptr<PhasedAllocator> memory_;
  std::optional<Session> session_;
  std::map<std::string, size_t> calls_;  // Collectives so far, by stream.
  double link_s_ = 0;
};

}  // namespace

Simulation Simulate(const ResolvedRun& run, const Hardware& hardware,
                    const SimulateOptions& options) {
  RankOfJob rank;
  Arrivals arrivals;
  if (options.slowest > 1) {
    if (run.place.world == 1) {
      rank.slower = options.slowest;
    } else {
      SimulatedRank(run, hardware, {.slower = options.slowest, .comes = &arrivals})
          .Run(options.steps, /*trace=*/false);
      rank.others = &arrivals;
    }
  }
  Simulation simulation = SimulatedRank(run, hardware, rank).Run(options.steps, options.trace);
  simulation.samples = static_cast<double>(run.recipe->train.global_batch_size);
  return simulation;
}

namespace {

// FLOP/s of products, as the data sheet has them.
std::optional<double> PeakOf(const Hardware& hardware, DType dtype) {
  if (dtype == DType::kBFloat16) return hardware.bf16_flops;
  return dtype == DType::kFloat16 ? hardware.fp16_flops : hardware.fp32_flops;
}

}  // namespace

StepEstimate EstimateOf(const ResolvedRun& run, const Hardware& hardware,
                        const Simulation& simulation, std::optional<double> floor_s) {
  const double step = simulation.step_s;
  // The job's step's, as MFU counts them.
  const double flops =
      FlopsPerSample(*run.model, run.options.executor.sample_length) * simulation.samples;
  const auto rate = [&](double work) { return step > 0 ? work / step : 0; };
  const BatchSpec inputs = run.model->Inputs(run.options.executor.sample_length);
  const StepTimes& times = simulation.times;
  StepEstimate estimate{
      .step_time_s = step,
      .samples_per_s = rate(simulation.samples),
      .counted_per_s = rate(simulation.samples * static_cast<double>(inputs.Counted())),
      .targets_per_s = rate(simulation.samples * static_cast<double>(inputs.targets)),
      .tflops_per_device = rate(flops) / run.place.world * 1e-12,
      .hardware_tflops_per_device = rate(simulation.hardware_flops) * 1e-12,
      .exposed_s = times.communication,
      .floor_s = floor_s ? *floor_s : FloorOf(run, hardware).Seconds()};
  estimate.breakdown = {{"data", times.data},           {"forward", times.forward},
                        {"recompute", times.recompute}, {"backward", times.backward},
                        {"optimizer", times.optimizer}, {"communication", times.communication},
                        {"offload", times.offload},     {"host", simulation.host_s}};
  estimate.calibrated_on = PointsSeen(hardware);
  const Recipe& recipe = *run.recipe;
  if (const auto peak = PeakOf(hardware, recipe.fsdp.mixed_precision.param_dtype)) {
    estimate.mfu = estimate.tflops_per_device * 1e12 / *peak;
  }
  if (inputs.tokens > 0) estimate.counted_per_day = estimate.counted_per_s * 86400;
  estimate.steps = recipe.train.steps;
  if (estimate.steps > 0) {
    estimate.run_s = step * static_cast<double>(estimate.steps);
    estimate.device_hours = *estimate.run_s * run.place.world / 3600;
  }
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

namespace {

void WriteDirectory(const std::string& directory, const ResolvedRun& run,
                    const StepEstimate& estimate, const Simulation& simulation, int steps) {
  const std::filesystem::path traces = std::filesystem::path(directory) / "traces";
  std::error_code error;
  std::filesystem::create_directories(traces, error);
  if (error) throw CheckpointError(traces.string() + ": cannot be made: " + error.message());
  const RankTrace trace{0, simulation.spans,
                        [&](uint64_t tag) {
                          const auto part = simulation.parts.find(tag);
                          return part == simulation.parts.end() ? StepPart() : part->second;
                        },
                        simulation.memory_points};
  WriteChromeTrace((traces / ("step_" + std::to_string(steps) + ".json")).string(),
                   std::span(&trace, 1));
  AtomicFile file((std::filesystem::path(directory) / "simulate.json").string());
  file.Append(PlanToJson(run.plan, estimate) + "\n");
  file.Commit();
}

}  // namespace

int LocalWorldFor(int world, std::optional<int> asked, const std::optional<Hardware>& hardware) {
  int local = asked.value_or(world);
  std::string from = "--local-world-size";
  if (!asked && hardware && hardware->network) {
    local = std::min(world, static_cast<int>(hardware->network->ranks_per_host));
    from = "network.ranks_per_host of " + hardware->name;
  }
  if (world % local == 0) return local;
  throw ConfigError(from + ": " + std::to_string(local) + " does not divide --world-size " +
                    std::to_string(world) +
                    (asked ? "" : "; --local-world-size says how many ranks a host has"));
}

ExitCode PlanOnHardware(const Recipe& recipe, int world, int local_world,
                        const std::optional<Hardware>& hardware, double expert_load, bool json,
                        ProgressLine& line) {
  if (!hardware) return PlanProcess(recipe, world, local_world, hardware, json, line);
  return PlanProcess(recipe, world, local_world, hardware, json, line, [&](ResolvedRun& run) {
    run.place.expert_load = expert_load;
    std::optional<StepEstimate> estimate;
    line.Do("simulating steps");
    try {
      const auto simulation = SimulateAndPlan(run, *hardware, {});
      if (simulation) estimate = EstimateOf(run, *hardware, *simulation);
    } catch (const ConfigError& error) {  // Memory is known all the same.
      line.End();
      if (!json) std::cerr << "no times: " << error.what() << "\n";
    }
    return estimate;
  });
}

ExitCode SimulateProcess(const Recipe& recipe, int world, int local_world, const Hardware& hardware,
                         double expert_load, SimulateOptions options, const std::string& directory,
                         bool json, ProgressLine& line) {
  options.trace = !directory.empty();
  return PlanProcess(recipe, world, local_world, hardware, json, line, [&](ResolvedRun& run) {
    run.place.expert_load = expert_load;
    std::optional<StepEstimate> estimate;
    line.Do("simulating " + Counted(options.steps, "step"));
    if (const auto simulation = SimulateAndPlan(run, hardware, options)) {
      estimate = EstimateOf(run, hardware, *simulation);
      if (options.trace) WriteDirectory(directory, run, *estimate, *simulation, options.steps);
    }
    return estimate;
  });
}

}  // namespace fsdp
