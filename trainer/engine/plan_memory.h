// What a rank needs, by running each kind of step once on a simulated device.
// Tests: tests/trainer/engine/plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_PLAN_MEMORY_H_
#define FSDP_TRAIN_TRAINER_ENGINE_PLAN_MEMORY_H_

#include <cstdint>
#include <memory>

#include "trainer/core/file_io.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/memory_ceiling.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/spill_memory.h"

namespace fsdp {

// Of one training step of a rank.
struct StepTraffic {
  // What other ranks take of rank 0, as its records count it (comm/traffic.h). Another rank gives
  // as much, but for some elements of an all-reduce whose size the ranks do not divide.
  int64_t all_gather_bytes = 0, reduce_scatter_bytes = 0, all_reduce_bytes = 0,
          all_to_all_bytes = 0;
  double flops = 0;  // Of all its kernels, what is computed again among them.
  // With cpu_offload: over the link between device and host; and what the host's updates read and
  // write of its memory.
  double to_host_bytes = 0, to_device_bytes = 0, update_bytes = 0;
  double spill_read_bytes = 0, spill_write_bytes = 0;  // With cpu_offload.spill: of the disk.
};
// Ranks of a job differ in nothing that the plan sees. `traffic` may be null. `device`: what the
// job is to run on.
// Throws MemoryError as soon as a step takes more than `ceiling`.
//   With `buffers: caching` it is what is reserved where the host learns from its own waits alone
//   that streams have got on: as much as any timing can make active at a time. Throws MemoryError
//   above options.executor.memory_limit.
MemoryPlan PlanMemory(Model& model, const SessionOptions& options, int world,
                      StepTraffic* traffic = nullptr, DeviceType device = DeviceType::kCpu,
                      const MemoryCeiling& ceiling = {});

// What a run with that plan takes of a disk, its space reserved; null: nothing. Throws
// CheckpointError. `io` is kept.
std::unique_ptr<SpillMemory> TakeDisk(const ExecutorOptions& options, const MemoryPlan& plan,
                                      FileIo& io = FileIo::System());
// The memory of a run with that plan, first what it takes of a disk. Throws MemoryError and, for
// the disk, CheckpointError.
std::unique_ptr<PhasedAllocator> MakeAllocator(Device& device, const ExecutorOptions& options,
                                               const MemoryPlan& plan,
                                               FileIo& io = FileIo::System());
// Of a simulated run that nobody plans with.
std::unique_ptr<PhasedAllocator> MakeSimulatedMemory(Device& device,
                                                     const ExecutorOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_PLAN_MEMORY_H_
