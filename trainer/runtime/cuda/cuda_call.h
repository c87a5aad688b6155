// Checked calls of the CUDA runtime, calls that only the driver has, and waits for the GPU without
// a call that waits in the driver. Included by this directory alone.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_CALL_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_CALL_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

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

// Blocks until `passed()`: yields at first, then sleeps for a sixteenth of the time waited so far,
// 20 us to 1 ms.
template <typename Passed>
void Await(const Passed& passed) {
  using Clock = std::chrono::steady_clock;
  constexpr int kYields = 100, kShare = 16;
  constexpr std::chrono::nanoseconds kShortest{20'000}, kLongest{1'000'000};
  const Clock::time_point begin = Clock::now();
  for (int i = 0; !passed(); ++i) {
    if (i < kYields) {
      std::this_thread::yield();
      continue;
    }
    const std::chrono::nanoseconds waited = Clock::now() - begin;
    std::this_thread::sleep_for(std::clamp(waited / kShare, kShortest, kLongest));
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_CALL_H_
