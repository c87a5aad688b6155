// Tests: tests/trainer/runtime/gpus_test.cc
#include <cuda_runtime_api.h>

#include <cstdio>

#include "trainer/core/errors.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/cuda/cuda_call.h"

namespace fsdp {

Gpus FindCudaGpus() {
  Gpus gpus;
  gpus.built = true;
  // Without a driver the runtime's other calls speak of an insufficient one.
  if (cudaRuntimeGetVersion(&gpus.runtime) != cudaSuccess ||
      cudaDriverGetVersion(&gpus.driver) != cudaSuccess ||
      gpus.driver < gpus.runtime / 1000 * 1000) {
    return gpus;
  }
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    if (error != cudaErrorNoDevice) gpus.error = Describe(error);
    return gpus;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, i); error != cudaSuccess) {
      gpus.error = Describe(error);
      return gpus;
    }
    char pci[32];
    std::snprintf(pci, sizeof(pci), "%04x:%02x:%02x.0", properties.pciDomainID, properties.pciBusID,
                  properties.pciDeviceID);
    gpus.visible.push_back({properties.name, properties.major, properties.minor,
                            static_cast<int64_t>(properties.totalGlobalMem),
                            std::string(properties.uuid.bytes, sizeof(properties.uuid.bytes)), pci,
                            properties.multiProcessorCount});
  }
  return gpus;
}

GpuMemory CudaMemoryOf(int gpu) {
  size_t free = 0, total = 0;
  cudaError_t error = cudaSetDevice(gpu);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
  if (error != cudaSuccess) {
    throw DeviceError("GPU " + std::to_string(gpu) +
                      " does not say how much memory is free: " + Describe(error));
  }
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

int CudaGpusInReach(int gpu) {
  int count = 0, reached = 1;
  cudaError_t error = cudaGetDeviceCount(&count);
  for (int peer = 0; peer < count && error == cudaSuccess; ++peer) {
    int reaches = 0;
    if (peer != gpu) error = cudaDeviceCanAccessPeer(&reaches, gpu, peer);
    reached += reaches;
  }
  if (error != cudaSuccess) {
    throw DeviceError("GPU " + std::to_string(gpu) +
                      " does not say which GPUs it reaches: " + Describe(error));
  }
  return reached;
}

}  // namespace fsdp
