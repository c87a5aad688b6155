#include "trainer/engine/plan_memory.h"

#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {

MemoryPlan PlanMemory(Model& model, const SessionOptions& options, int world, StepTraffic* traffic,
                      DeviceType device_type) {
  SimDevice device({}, nullptr, device_type);
  PlanRecorder recorder;
  const MeshCommunicators communicators(MeshFor(options.executor, /*rank=*/0, world),
                                        options.executor.communicators, ConnectSim);
  const auto no_load = [](int, const Batch&) {};
  {
    Session session(device, recorder, model, options, communicators);
    session.Train(1, options.FullTargets(), {}, no_load);
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
