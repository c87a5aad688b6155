// A thread's handle of cuDNN. A rank is a thread, and has one GPU as long as it lives, so nothing
// is shared between threads.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_THREAD_HANDLE_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_THREAD_HANDLE_H_

#include "trainer/ops/cudnn/cudnn_api.h"
#include "trainer/ops/cudnn/descriptor.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp::cudnn {

class ThreadHandle {
 public:
  // The first call of a thread makes its handle, for the GPU that is current, and takes some of the
  // GPU's memory. The handle is never closed, because a thread may end after the GPU's context.
  // Throws DeviceError.
  static ThreadHandle& Get();

  const Api& api() const { return api_; }
  const Descriptor& gpu() const { return gpu_; }
  // The handle for one call, whose work goes to `stream`. Throws DeviceError.
  Handle On(CudaStreamHandle stream) const;

 private:
  ThreadHandle();

  const Api& api_;
  const Handle handle_;
  const Descriptor gpu_;
};

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_THREAD_HANDLE_H_
