#include "trainer/engine/plan_memory.h"

#include <string_view>
#include <utility>

#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/runtime/sim/sim_device.h"
#include "trainer/runtime/spill_memory.h"

namespace fsdp {
namespace {

void Count(const Operation& operation, std::string_view stream, StepTraffic& traffic) {
  const Cost cost = Sum(operation.costs);
  traffic.flops += cost.flops;
  const std::string_view name = operation.name;
  const bool copies = name == "copy";
  if (stream == "leave" && copies) traffic.to_host_bytes += cost.bytes_written;
  if (stream == "fetch" && copies) traffic.to_device_bytes += cost.bytes_written;
  if (stream == "update") traffic.update_bytes += cost.bytes_read + cost.bytes_written;
  if (name == "spill_read") traffic.spill_read_bytes += cost.bytes_read;
  if (name == "spill_write") traffic.spill_write_bytes += cost.bytes_written;
}

bool Caches(const ExecutorOptions& options) {
  return options.buffers == FsdpOptions::Buffers::kCaching;
}

}  // namespace

MemoryPlan PlanMemory(Model& model, const SessionOptions& options, int world, StepTraffic* traffic,
                      DeviceType device_type) {
  const bool caches = Caches(options.executor);
  // Work takes time, and the host none: what it does not wait for is not over when it comes back.
  SimModel time;
  if (caches) time.s_per_byte = time.s_per_link_byte = 1;
  SimDevice device(time, nullptr, device_type);
  PlanRecorder recorder;
  CachingBuffers buffers(device, options.executor.memory_limit);
  PhasedAllocator& memory = caches ? static_cast<PhasedAllocator&>(buffers) : recorder;
  const MeshCommunicators communicators(MeshFor(options.executor, /*rank=*/0, world),
                                        options.executor.communicators, ConnectSim);
  const auto no_load = [](int, const Batch&) {};
  {
    Session session(device, memory, model, options, communicators);
    if (caches) session.executor().MastersWritten();  // As when a run begins.
    if (traffic != nullptr) {
      device.Observe([&](const Operation& operation, const Stream& stream) {
        Count(operation, stream.name(), *traffic);
      });
    }
    session.Train(1, options.FullTargets(), {}, no_load);
    device.Observe(nullptr);
    if (traffic != nullptr) {
      for (const Communicator* c : communicators.all()) {
        traffic->all_gather_bytes += c->link_bytes(Collective::kAllGather);
        traffic->reduce_scatter_bytes += c->link_bytes(Collective::kReduceScatter);
        traffic->all_reduce_bytes += c->link_bytes(Collective::kAllReduce);
      }
    }
    // Two steps are in the air at a time.
    for (int step = 2; caches && step <= 4; ++step) {
      session.Train(step, options.FullTargets(), {}, no_load);
    }
    if (options.eval) session.Eval(1, no_load);
    if (options.generate) session.Logits(0, no_load);
    if (caches) return buffers.Used();
  }
  return recorder.Finish();
}

std::unique_ptr<PhasedAllocator> MakeAllocator(Device& device, const ExecutorOptions& options,
                                               const MemoryPlan& plan) {
  std::unique_ptr<SpillMemory> spill;
  if (const int64_t bytes = plan.bytes(MemoryPlace::kDisk);
      bytes > 0 && device.type() != DeviceType::kSim) {
    spill =
        std::make_unique<SpillMemory>(options.cpu_offload.spill.value(), "training state", bytes);
  }
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
