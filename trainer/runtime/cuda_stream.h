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

// A stream holds a limited number of operations.
class LaunchRoom {
 public:
  virtual ~LaunchRoom() = default;
  // Blocks the host until the stream has room for these. Of the thread that enqueues.
  virtual void Take(int64_t operations) = 0;
};

struct CudaStreamHandle {
  CudaStreamHandle(CUstream_st* s, const GemmResources& g = {},  // NOLINT: a stream is one.
                   LaunchRoom* r = nullptr)
      : stream(s), gemm(g), room(r) {}
  operator CUstream_st*() const { return stream; }  // NOLINT: what CUDA calls take.
  // Whoever puts operations on the stream says so first: at most so many.
  void WillPut(int64_t operations) const {
    if (room != nullptr) room->Take(operations);
  }

  CUstream_st* stream;  // cudaStream_t.
  GemmResources gemm;
  LaunchRoom* room;  // Null: without a limit.
};
// Of one call of cuBLASLt's or cuDNN's, and of NCCL's: a kernel and what sums its parts, a kernel
// and the events around it. No library says how many it puts on a stream: RunAhead leaves room for
// more.
inline constexpr int64_t kOperationsOfALibraryCall = 2, kOperationsOfNccl = 8;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_
