// The GPUs that this process may compute on, and why it may compute on none.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_GPUS_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_GPUS_H_

#include <string>

#include "trainer/runtime/cuda/find_gpus.h"

namespace fsdp {

// Asks the driver and takes no GPU memory. Everything is empty where the program was built without
// CUDA.
Gpus FindGpus();

// The kernels' oldest GPU: capability 8.0 (mma.sync of bf16, cp.async).
inline constexpr int kOldestMajor = 8;

// Why visible[gpu] cannot be used, or why there is no such GPU, with the cure, in one line; empty
// where it can be used. `visible_devices`: CUDA_VISIBLE_DEVICES, or null.
std::string WhyUnusable(const Gpus& gpus, int gpu, const char* visible_devices);

// The GPU of the host's rank `local_rank`: ranks take the GPUs in turn. 0 where there are none.
int GpuOfRank(const Gpus& gpus, int local_rank);

// The GPU's memory. Makes this process's context on the GPU first, so that `free` excludes it.
// Throws DeviceError.
GpuMemory MemoryOf(int gpu);

std::string CudaVersionText(int version);  // "13.0".

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_GPUS_H_
