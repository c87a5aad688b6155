// One GPU: cudaStreams, cudaEvents, memory by cudaMalloc and cudaHostAlloc. This header includes no
// CUDA header.
//   Order     The host enqueues at once into the GPU's own queues, up to a limit at which the host
//             waits (progress.h). Work of the host (DeviceKernels::host) and waits for other
//             devices' events run on a thread of their stream, behind an event; later work of the
//             stream waits for a word in pinned memory that the thread sets. CUDA's callbacks are
//             not used: one thread runs the callbacks of all streams, so a collective in one could
//             hold up the work that its peer waits for in another.
//   Failure   The device goes on behind a failure: see stream.h. Nothing runs behind a fault of the
//             GPU, and all work that was not known to have passed has failed.
//   Time      The host's steady clock. The GPU's clock was set to it when the device was made, and
//             the two drift apart as clocks do.
//   Position  Exact to tags and waits: gives the first of the operations with one tag.
//   Streams   A device should have no more streams than CUDA has connections: cuda_call.h.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_DEVICE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "trainer/runtime/device.h"

namespace fsdp {

class StreamChecker;

struct CudaOptions {
  int gpu = 0;  // Index among the visible GPUs.
  // The host waits after each operation, so that a fault names the operation that caused it.
  bool synchronous = false;
  std::shared_ptr<StreamChecker> checker = nullptr;
};

// Null where the program was built without CUDA. Throws DeviceError.
[[gnu::weak]] std::unique_ptr<Device> CreateCudaDevice(const CudaOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_DEVICE_H_
