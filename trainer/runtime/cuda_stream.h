// CUDA's stream without its headers: what launches on it goes by this name outside runtime/cuda.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace fsdp {

class GemmLibrary;  // ops/cuda/gemm_library.h

// What a stream has for its matrix products. Without a library they are kernels of ours.
struct GemmResources {
  GemmLibrary* library = nullptr;
  std::byte* workspace =
      nullptr;  // kGemmWorkspaceBytes, of the stream alone, at a multiple of 256.
};
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

struct CudaStreamHandle {
  CudaStreamHandle(CUstream_st* s, const GemmResources& g = {})  // NOLINT: a stream is one.
      : stream(s), gemm(g) {}
  operator CUstream_st*() const { return stream; }  // NOLINT: what CUDA calls take.

  CUstream_st* stream;  // cudaStream_t.
  GemmResources gemm;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_
