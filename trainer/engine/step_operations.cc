#include "trainer/engine/step_operations.h"

#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {

void ObserveStep(Model& model, const SessionOptions& options, int world, DeviceType kernels,
                 const std::function<void(const Operation&, StepResource)>& seen) {
  ObserveStreams(model, options, world, kernels,
                 [&](const Operation& operation, const Stream& stream) {
                   seen(operation, ResourceOf(operation, stream.name()));
                 });
}

void ObserveStreams(Model& model, const SessionOptions& options, int world, DeviceType kernels,
                    const std::function<void(const Operation&, const Stream&)>& seen) {
  SimDevice device({}, /*checker=*/nullptr, kernels);
  const std::unique_ptr<PhasedAllocator> memory = MakeSimulatedMemory(device, options.executor);
  const MeshCommunicators communicators(MeshFor(options.executor, /*rank=*/0, world),
                                        options.executor.communicators, ConnectSim);
  Session session(device, *memory, model, options, communicators);
  device.Observe(seen);
  session.Train(1, session.FullTargets(), /*save=*/false, [](int, const Batch&) {});
  device.Observe(nullptr);
}

std::set<ConvolutionCall> StepConvolutions(Model& model, const SessionOptions& options) {
  std::set<ConvolutionCall> calls;
  // Alone, without offload or recomputation: neither changes the calls.
  SessionOptions alone;
  ExecutorOptions& e = alone.executor;
  e.sharding_strategy = Strategy::kNoShard;
  e.mixed_precision = options.executor.mixed_precision;
  e.micro_batch_size = options.executor.micro_batch_size;
  e.sample_length = options.executor.sample_length;
  e.attention = AttentionBackend::kMath;
  e.convolution = {.cudnn = true, .asked = &calls};
  alone.global_batch_size = e.micro_batch_size;
  alone.train = options.train;
  alone.eval = !options.train;
  SimDevice device({}, /*checker=*/nullptr, DeviceType::kCuda);
  const std::unique_ptr<PhasedAllocator> memory = MakeSimulatedMemory(device, e);
  const MeshCommunicators communicators(MeshFor(e, /*rank=*/0, /*world=*/1), e.communicators,
                                        ConnectSim);
  Session session(device, *memory, model, alone, communicators);
  const auto load = [](int, const Batch&) {};
  if (alone.train) {
    session.Train(1, session.FullTargets(), /*save=*/false, load);
  } else {
    session.Eval(1, load);
  }
  return calls;
}

double FlopsPerSample(Model& model, int64_t length) {
  SessionOptions options;
  options.executor.sharding_strategy = Strategy::kNoShard;
  options.executor.sample_length = length;
  // MFU counts the same of both ways of attention, and every model can take this one.
  options.executor.attention = AttentionBackend::kMath;
  options.eval = false;
  double flops = 0;
  ObserveStep(model, options, /*world=*/1, DeviceType::kCpu,
              [&](const Operation& operation, StepResource) {
                for (const KernelCost& kernel : operation.costs) flops += kernel.model_flops;
              });
  return flops;
}

}  // namespace fsdp
