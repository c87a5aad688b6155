#include "trainer/engine/step_operations.h"

#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {

void ObserveStep(Model& model, const SessionOptions& options, int world, DeviceType kernels,
                 const std::function<void(const Operation&, StepResource)>& seen) {
  SimDevice device({}, /*checker=*/nullptr, kernels);
  const std::unique_ptr<PhasedAllocator> memory = MakeSimulatedMemory(device, options.executor);
  const MeshCommunicators communicators(MeshFor(options.executor, /*rank=*/0, world),
                                        options.executor.communicators, ConnectSim);
  Session session(device, *memory, model, options, communicators);
  device.Observe([&](const Operation& operation, const Stream& stream) {
    seen(operation, ResourceOf(operation, stream.name()));
  });
  session.Train(1, session.FullTargets(), {}, [](int, const Batch&) {});
  device.Observe(nullptr);
}

}  // namespace fsdp
