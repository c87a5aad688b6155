// Checked calls of the CUDA runtime, and calls that only the driver has. Included by this directory
// alone.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_CALL_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_CALL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "trainer/core/errors.h"

namespace fsdp {

inline std::string Describe(cudaError_t error) {
  return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

// For calls while no work is in flight. Throws DeviceError.
inline void CheckCall(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // Cleared, or a later call that asks for the last error finds this
                             // one.
  throw DeviceError(std::string(what) + ": " + Describe(error));
}

// int stands for CUresult, unsigned long long for CUdeviceptr: nothing else here needs their
// header.
using StreamValueCall = int (*)(cudaStream_t stream, unsigned long long address, uint32_t value,
                                unsigned flags);

struct DriverCalls {
  // Later work of the stream waits until the word is `value` or, counting round, beyond.
  StreamValueCall wait_value = nullptr;
  StreamValueCall write_value = nullptr;
};
DriverCalls FindDriverCalls();  // Throws DeviceError.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_CALL_H_
