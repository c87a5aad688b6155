#include "trainer/engine/plan_memory.h"

#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {

MemoryPlan PlanMemory(Model& model, const SessionOptions& options, int world, StepTraffic* traffic,
                      DeviceType device_type) {
  SimDevice device({}, nullptr, device_type);
  PlanRecorder recorder;
  SimCommunicator gather(0, world), reduce(0, world);
  const auto no_load = [](int, const Batch&) {};
  {
    Session session(device, recorder, model, options, 0, world, &gather, &reduce);
    session.Train(1, options.FullTargets(), {}, no_load);
    if (traffic != nullptr) {
      for (const Communicator* c : {&gather, &reduce}) {
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
