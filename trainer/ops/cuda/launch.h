// The base of every .cu file: launches, elements of three dtypes as floats, and packs of 16 bytes.
// A .cu file is compiled by nvcc for GPUs, and by g++ for the emulator of tests/emulated, whose
// <cuda_runtime.h> replaces the toolkit's. So Launch() starts kernels, never <<<>>>; instructions
// beyond CUDA C++ are in ptx.h.
// Tests: tests/emulated/test_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_LAUNCH_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_LAUNCH_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "trainer/core/dtype.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// A block may have this much dynamic shared memory without asking for more.
inline constexpr size_t kSharedBytesWithoutAsking = size_t{48} << 10;

inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw DeviceError(std::string(what) + ": " + cudaGetErrorString(error));
}

// kernel<<<grid, block, shared_bytes, stream>>>(args...), where the arguments convert to the
// kernel's parameters. Does nothing where the grid is empty. Throws DeviceError where the launch is
// refused.
template <auto kernel, typename... Args>
void Launch(CudaStreamHandle stream, dim3 grid, dim3 block, size_t shared_bytes,
            const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > kSharedBytesWithoutAsking) {
    CheckCuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared_bytes)),
              __PRETTY_FUNCTION__);
  }
  stream.WillPut(1);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
#ifdef __CUDACC__
  CheckCuda(cudaLaunchKernelEx(&config, kernel, args...), __PRETTY_FUNCTION__);
#else
  CheckCuda(EmulateLaunch<kernel>(config, args...), __PRETTY_FUNCTION__);
#endif
}

// Calls f(Is<T>()) for the element type T of this dtype, one of fp32, bf16 and fp16.
template <typename T>
struct Is {
  using type = T;
};
template <typename Function>
void ForFloat(DType dtype, const Function& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(Is<float>());
    case DType::kBFloat16:
      return f(Is<__nv_bfloat16>());
    case DType::kFloat16:
      return f(Is<__half>());
    default:
      throw std::invalid_argument("[ForFloat] no kernel for " + std::string(Name(dtype)));
  }
}

// Conversions to float are exact. Conversions from float round to nearest, ties to even.
__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }
template <typename T>
__device__ inline T FromFloat(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16(x);
  } else {
    return __float2half(x);
  }
}

// Elements that one access moves.
template <typename T, int n = 16 / sizeof(T)>
struct alignas(n * sizeof(T)) Pack {
  T at[n];
};
template <typename T>
inline constexpr int kPack = 16 / sizeof(T);

// Whether packs may be used here: a tensor may begin wherever its elements may.
inline bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

__host__ __device__ inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_LAUNCH_H_
