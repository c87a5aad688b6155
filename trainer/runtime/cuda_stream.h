// CUDA's stream without its headers: what launches on it goes by this name outside runtime/cuda.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_

#include <cstdint>

struct CUstream_st;

namespace fsdp {

// Means of a stream's operations beside its memory: a library's handle, a workspace. Whose it
// is, they know.
class StreamResources {
 public:
  virtual ~StreamResources() = default;
};

// A stream holds a limited number of operations.
class LaunchRoom {
 public:
  virtual ~LaunchRoom() = default;
  // Blocks the host until the stream has room for these. Of the thread that enqueues.
  virtual void Take(int64_t operations) = 0;
};

struct CudaStreamHandle {
  CudaStreamHandle(CUstream_st* s, const StreamResources* l = nullptr,  // NOLINT: a stream is one.
                   LaunchRoom* r = nullptr)
      : stream(s), resources(l), room(r) {}
  operator CUstream_st*() const { return stream; }  // NOLINT: what CUDA calls take.
  // Whoever puts operations on the stream says so first: at most so many.
  void WillPut(int64_t operations) const {
    if (room != nullptr) room->Take(operations);
  }

  CUstream_st* stream;               // cudaStream_t.
  const StreamResources* resources;  // Null: the stream was lent none.
  LaunchRoom* room;                  // Null: without a limit.
};
// Of one call of cuBLASLt's or cuDNN's, and of NCCL's: a kernel and what sums its parts, a kernel
// and the events around it. No library says how many it puts on a stream: RunAhead leaves room for
// more.
inline constexpr int64_t kOperationsOfALibraryCall = 2, kOperationsOfNccl = 8;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_
