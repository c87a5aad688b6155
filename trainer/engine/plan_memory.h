// The memory that a rank needs, found by running each kind of step once on a simulated device.
// Tests: tests/trainer/engine/plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_PLAN_MEMORY_H_
#define FSDP_TRAIN_TRAINER_ENGINE_PLAN_MEMORY_H_

#include <cstdint>
#include <memory>

#include "trainer/core/file_io.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {

class Model;

// Traffic of one training step of a rank.
struct StepTraffic {
  // Bytes that other ranks take from rank 0, as its records count them (comm/traffic.h). Every
  // other rank gives as much, except for some elements of an all-reduce whose size the ranks do not
  // divide.
  int64_t all_gather_bytes = 0, reduce_scatter_bytes = 0, all_reduce_bytes = 0,
          all_to_all_bytes = 0;
  double flops = 0;  // All kernels, recomputation included.
  // With cpu_offload: bytes over the link between device and host; and bytes of host memory that
  // the host's updates read and write.
  double to_host_bytes = 0, to_device_bytes = 0, update_bytes = 0;
  double spill_read_bytes = 0, spill_write_bytes = 0;  // With cpu_offload.spill.
};
// Ranks of a job differ in nothing that the plan sees. `traffic` may be null. `device`: what the
// job is to run on.
// Throws MemoryError as soon as a step takes more than `ceiling`.
//   With `buffers: caching` the plan is the reserved memory when the host learns only from its own
//   waits that streams have got on: the most that any timing can make active at a time. Throws
//   MemoryError above options.executor.memory_limit.
MemoryPlan PlanMemory(Model& model, const SessionOptions& options, int world,
                      StepTraffic* traffic = nullptr, DeviceType device = DeviceType::kCpu,
                      const MemoryCeiling& ceiling = {});

// The disk memory of a run with that plan, its space reserved; null: none. Throws CheckpointError.
// Keeps a reference to `io`.
std::unique_ptr<SpillMemory> TakeDisk(const ExecutorOptions& options, const MemoryPlan& plan,
                                      FileIo& io = FileIo::System());
// The memory of a run with that plan, taken from the disk first. Throws MemoryError and, for the
// disk, CheckpointError.
std::unique_ptr<PhasedAllocator> MakeAllocator(Device& device, const ExecutorOptions& options,
                                               const MemoryPlan& plan,
                                               FileIo& io = FileIo::System());
// The memory of a simulated run without a plan.
std::unique_ptr<PhasedAllocator> MakeSimulatedMemory(Device& device,
                                                     const ExecutorOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_PLAN_MEMORY_H_
