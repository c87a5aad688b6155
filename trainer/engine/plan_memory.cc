#include "trainer/engine/plan_memory.h"

#include <array>
#include <utility>

#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/engine/step_resource.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

void Count(const Operation& operation, StepResource resource, StepTraffic& traffic) {
  traffic.flops += Sum(operation.costs).flops;
  const std::array<double*, kNumStepResources> bytes = {nullptr,
                                                        &traffic.to_host_bytes,
                                                        &traffic.to_device_bytes,
                                                        &traffic.update_bytes,
                                                        &traffic.spill_read_bytes,
                                                        &traffic.spill_write_bytes};
  double* const there = bytes[static_cast<size_t>(resource)];
  if (there != nullptr) *there += BytesThere(operation, resource);
}

bool Caches(const ExecutorOptions& options) {
  return options.buffers == FsdpOptions::Buffers::kCaching;
}

}  // namespace

MemoryPlan PlanMemory(Model& model, const SessionOptions& options, int world, StepTraffic* traffic,
                      DeviceType device_type, const MemoryCeiling& ceiling) {
  const bool caches = Caches(options.executor);
  // A block of a caching allocator is free again when the events of its users have passed: here as
  // late as they can.
  SimDevice device({.ready_when_waited_for = caches}, nullptr, device_type);
  PlanRecorder recorder(ceiling);
  CachingBuffers buffers(device, options.executor.memory_limit, /*spill=*/nullptr, ceiling);
  PhasedAllocator& memory = caches ? static_cast<PhasedAllocator&>(buffers) : recorder;
  const MeshCommunicators communicators(MeshFor(options.executor, /*rank=*/0, world),
                                        options.executor.communicators, ConnectSim);
  const auto no_load = [](int, const Batch&) {};
  MemoryPlan plan;
  {
    Session session(device, memory, model, options, communicators);
    if (traffic != nullptr) {
      device.Observe([&](const Operation& operation, const Stream& stream) {
        Count(operation, ResourceOf(operation, stream.name()), *traffic);
      });
    }
    // As a run's: each step knows the next, so the host waits for no more than there.
    const auto train = [&](int64_t step) {
      session.Train(step, session.FullTargets(), /*save=*/false, no_load, no_load);
    };
    if (options.train) train(1);
    device.Observe(nullptr);
    if (traffic != nullptr) {
      const TrafficBytes given = session.executor().Given(0);
      traffic->all_gather_bytes = given.of(Collective::kAllGather);
      traffic->reduce_scatter_bytes = given.of(Collective::kReduceScatter);
      traffic->all_reduce_bytes = given.of(Collective::kAllReduce);
      traffic->all_to_all_bytes = given.of(Collective::kAllToAll);
    }
    // Two steps, or two micro-batches of an evaluation, are in the air at a time.
    for (int step = 2; caches && options.train && step <= 4; ++step) train(step);
    for (int i = 0; options.eval && i < (caches ? 3 : 1); ++i) session.Eval(1, no_load);
    if (options.generate) session.Logits(0, no_load);
    if (options.predict) session.Predict(no_load);
    if (caches) plan = buffers.Used();
  }
  if (!caches) plan = recorder.Finish();
  plan.threads = device.threads();
  plan.multiplying = device.multiplying();
  return plan;
}

std::unique_ptr<SpillMemory> TakeDisk(const ExecutorOptions& options, const MemoryPlan& plan,
                                      FileIo& io) {
  const int64_t bytes = plan.bytes(MemoryPlace::kDisk);
  if (bytes == 0) return nullptr;
  const FsdpOptions::CpuOffload& offload = options.cpu_offload;
  return std::make_unique<SpillMemory>(
      offload.spill.value(), offload.optimizer ? "training state" : "activations", bytes, io);
}

std::unique_ptr<PhasedAllocator> MakeAllocator(Device& device, const ExecutorOptions& options,
                                               const MemoryPlan& plan, FileIo& io) {
  std::unique_ptr<SpillMemory> spill;
  if (device.type() != DeviceType::kSim) spill = TakeDisk(options, plan, io);
  if (Caches(options)) {
    return std::make_unique<CachingBuffers>(device, options.memory_limit, std::move(spill));
  }
  return std::make_unique<PlannedAllocator>(device, plan, std::move(spill));
}

std::unique_ptr<PhasedAllocator> MakeSimulatedMemory(Device& device,
                                                     const ExecutorOptions& options) {
  if (Caches(options)) return std::make_unique<CachingBuffers>(device);
  return std::make_unique<PlanRecorder>();
}

}  // namespace fsdp
