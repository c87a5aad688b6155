// One GPU: cudaStreams, cudaEvents, memory by cudaMalloc and cudaHostAlloc. No CUDA header comes in
// by this one.
//   Order     The host enqueues at once: the GPU's own queues hold what it enqueues, up to a
//             limit at which the host waits (run_ahead.h). Work of the host (DeviceKernels::host)
//             and waits for other devices' events run on a thread of their stream, behind an event;
//             what follows waits for a word in pinned memory that the thread sets. No callback of
//             CUDA's is used: one thread runs those of all streams, so a collective in one could
//             hold up what its peer waits for in another.
//   Failure   It goes on behind a failure: see stream.h. Behind a fault of the GPU nothing runs,
//             and all that was not known to have passed has failed.
//   Time      The host's steady clock, to which the GPU's was set when the device was made: the
//             two drift apart as clocks do.
//   Position  Exact to tags and waits: of operations with one tag the first.
//   Streams   A device should have no more than CUDA has connections: see cuda_environment.h.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_DEVICE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "trainer/runtime/device.h"

namespace fsdp {

struct CudaOptions {
  int gpu = 0;  // Of the visible ones.
  // The host waits after each operation, so that a fault is that of the operation it names.
  bool synchronous = false;
  std::shared_ptr<StreamChecker> checker = nullptr;
};

// Null where the program was built without CUDA. Throws DeviceError.
[[gnu::weak]] std::unique_ptr<Device> CreateCudaDevice(const CudaOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_DEVICE_H_
