// State that the streams and events of a CUDA device share. It lives as long as they do, also when
// the device is gone.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_GPU_STATE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_GPU_STATE_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trainer/runtime/cuda/cuda_call.h"
#include "trainer/runtime/cuda/event_pool.h"
#include "trainer/runtime/cuda/failures.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class GpuState {
 public:
  // Throws DeviceError.
  GpuState(int gpu, bool synchronous);

  const int gpu;
  const bool synchronous;
  const DriverCalls driver;
  const std::string name;  // "GPU 0 (NVIDIA H200)".
  const std::shared_ptr<EventPool> events, timed_events;
  Failures failures;

  uint64_t NextTicket() { return ++tickets_; }

  // Checks a call's result: an error fails the device, in words that say where its streams were.
  // True if there was no error.
  bool Check(cudaError_t error);
  void Fail(const std::string& what);  // Fails the device.

  // Records an event. Null where the pool can give none; the device has then failed.
  EventPool::Handle Recorded(cudaStream_t stream, bool timed);

  void Add(Stream* stream);
  void Remove(Stream* stream);

 private:
  std::atomic<uint64_t> tickets_{0};
  std::mutex mutex_;  // Guards what follows.
  std::vector<Stream*> streams_;
};

// "gemm on stream compute".
std::string Describe(const Stream& stream, const StreamPosition& at);

class CudaEvent final : public Event {
 public:
  CudaEvent(std::shared_ptr<GpuState> state, EventPool::Handle handle, int stream,
            VectorClock before)
      : state_(std::move(state)),
        handle_(std::move(handle)),
        stream_(stream),
        before_(std::move(before)) {}

  bool Ready() const override;
  void Block() const override;

  const GpuState* state() const { return state_.get(); }
  cudaEvent_t handle() const { return handle_.get(); }  // Null: the GPU had failed before.
  const VectorClock& before() const { return before_; }

 private:
  double DoTime() const override;

  const std::shared_ptr<GpuState> state_;
  const EventPool::Handle handle_;
  const int stream_;
  const VectorClock before_;
  mutable std::atomic<bool> passed_{false};  // The host has seen it pass.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_GPU_STATE_H_
