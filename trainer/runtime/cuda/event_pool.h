// Reused cudaEvents of one GPU, and the times at which they passed. Any thread may call.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_EVENT_POOL_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_EVENT_POOL_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

namespace fsdp {

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  using Handle = std::shared_ptr<CUevent_st>;  // Returns to the pool, if the pool still exists.

  // `timed`: the events know when they passed. Untimed ones are cheaper to wait for.
  EventPool(int gpu, bool timed) : gpu_(gpu), timed_(timed) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  Handle Take();  // Throws DeviceError. Nobody waits for the event's earlier record any more.

  // For pools of timed events alone, from here on.
  //
  // Starts the clock of Now() and TimeOf() on this idle stream. Throws DeviceError.
  void SetClock(cudaStream_t stream);
  double Now();
  // When the event passed, no later than Now(). Returns Now() where the GPU has faulted and cannot
  // say.
  double TimeOf(const Handle& event);

 private:
  void Return(cudaEvent_t event);

  const int gpu_;
  const bool timed_;
  std::mutex mutex_;  // Guards what follows.
  std::vector<cudaEvent_t> free_;
  Handle base_;  // Times count from this event.
  double base_time_ = 0;
  double latest_ = 0;  // Latest time given out.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_EVENT_POOL_H_
