// The GPUs that the CUDA runtime lists: see runtime/gpus.h.
// Tests: tests/trainer/runtime/gpus_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FIND_GPUS_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FIND_GPUS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

struct Gpu {
  std::string name;          // The driver's: "NVIDIA H100 80GB HBM3".
  int major = 0, minor = 0;  // Compute capability.
  int64_t memory = 0;        // Bytes.
  std::string uuid = {};     // 16 bytes.
};

// Versions are CUDA's: 13000 is 13.0.
struct Gpus {
  bool built = false;        // The program has kernels for GPUs.
  int runtime = 0;           // The version that the program is linked with.
  int driver = 0;            // The newest CUDA that the driver knows. 0: there is no driver.
  std::string error;         // Why GPUs cannot be listed, for another reason than the above.
  std::vector<Gpu> visible;  // In the order of CUDA_VISIBLE_DEVICES, where that is set.
};

struct GpuMemory {
  int64_t free = 0, total = 0;  // Bytes.
};

// Null where the program was built without CUDA.
[[gnu::weak]] Gpus FindCudaGpus();
[[gnu::weak]] GpuMemory CudaMemoryOf(int gpu);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FIND_GPUS_H_
