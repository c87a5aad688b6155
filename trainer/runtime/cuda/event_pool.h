// cudaEvents that are used again, and when they passed. Of one GPU; from any thread.
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
  using Handle = std::shared_ptr<CUevent_st>;  // Goes back to the pool, if there still is one.

  // `timed`: of events that know when they passed. Those that do not are cheaper to wait for.
  EventPool(int gpu, bool timed) : gpu_(gpu), timed_(timed) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  Handle Take();  // Throws DeviceError. What it was recorded for before is nobody's any more.

  // What follows is for timed ones alone.
  //
  // The clock of what follows begins now, on this idle stream. Throws DeviceError.
  void SetClock(cudaStream_t stream);
  double Now();
  // Of one that has passed, no later than Now(). Where the GPU has faulted and cannot say, Now().
  double TimeOf(const Handle& event);

 private:
  void Return(cudaEvent_t event);

  const int gpu_;
  const bool timed_;
  std::mutex mutex_;  // Guards what follows.
  std::vector<cudaEvent_t> free_;
  Handle base_;  // Times are counted from its own.
  double base_time_ = 0;
  double latest_ = 0;  // Of the times given out.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_EVENT_POOL_H_
