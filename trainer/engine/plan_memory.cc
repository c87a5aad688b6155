#include "trainer/engine/plan_memory.h"

#include <string_view>

#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

void Count(const Operation& operation, std::string_view stream, StepTraffic& traffic) {
  const Cost cost = Sum(operation.costs);
  traffic.flops += cost.flops;
  const bool copies = std::string_view(operation.name) == "copy";
  if (stream == "leave" && copies) traffic.to_host_bytes += cost.bytes_written;
  if (stream == "fetch" && copies) traffic.to_device_bytes += cost.bytes_written;
  if (stream == "update") traffic.update_bytes += cost.bytes_read + cost.bytes_written;
}

}  // namespace

MemoryPlan PlanMemory(Model& model, const SessionOptions& options, int world, StepTraffic* traffic,
                      DeviceType device_type) {
  SimDevice device({}, nullptr, device_type);
  PlanRecorder recorder;
  const MeshCommunicators communicators(MeshFor(options.executor, /*rank=*/0, world),
                                        options.executor.communicators, ConnectSim);
  const auto no_load = [](int, const Batch&) {};
  {
    Session session(device, recorder, model, options, communicators);
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
    if (options.eval) session.Eval(1, no_load);
    if (options.generate) session.Logits(0, no_load);
  }
  return recorder.Finish();
}

}  // namespace fsdp
