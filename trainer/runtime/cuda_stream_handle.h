// CUDA's stream without CUDA's headers: launches outside runtime/cuda use this type.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_HANDLE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_HANDLE_H_

#include <cstdint>

struct CUstream_st;

namespace fsdp {

// Resources that a stream's operations need beside memory: a library's handle, a workspace. The
// operations know the concrete type.
class StreamResources {
 public:
  virtual ~StreamResources() = default;
};

// A stream holds a limited number of operations.
class LaunchRoom {
 public:
  virtual ~LaunchRoom() = default;
  // Blocks the host until the stream has room for these. For the enqueuing thread alone.
  virtual void Take(int64_t operations) = 0;
};

struct CudaStreamHandle {
  CudaStreamHandle(CUstream_st* s, const StreamResources* l = nullptr,  // NOLINT: a stream is one.
                   LaunchRoom* r = nullptr)
      : stream(s), resources(l), room(r) {}
  operator CUstream_st*() const { return stream; }  // NOLINT: CUDA calls take it.
  // Must be called before operations are put on the stream: at most so many.
  void WillPut(int64_t operations) const {
    if (room != nullptr) room->Take(operations);
  }

  CUstream_st* stream;               // cudaStream_t.
  const StreamResources* resources;  // Null: none were lent to the stream.
  LaunchRoom* room;                  // Null: no limit.
};
// Operations of one call. cuBLASLt: a kernel, and a second one that sums its parts. cuDNN:
// convolutions may also pad and transpose their operands, and the result. NCCL: a kernel and the
// events around it. No library documents the number: RunAhead leaves room for more.
inline constexpr int64_t kOperationsOfCublasLt = 2, kOperationsOfCudnn = 6, kOperationsOfNccl = 8;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_HANDLE_H_
