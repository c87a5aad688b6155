#include "trainer/runtime/cuda/event_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "trainer/runtime/cuda/cuda_call.h"

namespace fsdp {
namespace {

// A float of milliseconds tells microseconds apart for that long.
constexpr double kBaseFor_s = 4;

double HostTime() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

EventPool::~EventPool() {
  for (const cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

EventPool::Handle EventPool::Take() {
  cudaEvent_t event = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (event == nullptr) {
    CheckCall(cudaSetDevice(gpu_), "cudaSetDevice");
    // Not cudaEventBlockingSync: each of those takes several entries of a stream's queue.
    const unsigned flags = timed_ ? cudaEventDefault : cudaEventDisableTiming;
    CheckCall(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  }
  return Handle(event, [weak = weak_from_this()](cudaEvent_t e) {
    if (const auto pool = weak.lock()) {
      pool->Return(e);
    } else {
      (void)cudaEventDestroy(e);
    }
  });
}

void EventPool::Return(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  free_.push_back(event);
}

// Takes the shortest of a few tries: the event passes before the host sees it.
void EventPool::SetClock(cudaStream_t stream) {
  double shortest = 0;
  for (int i = 0; i < 5; ++i) {
    Handle event = Take();
    const double begin = HostTime();
    CheckCall(cudaEventRecord(event.get(), stream), "cudaEventRecord");
    CheckCall(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
    const double end = HostTime();
    std::lock_guard lock(mutex_);
    if (base_ != nullptr && end - begin >= shortest) continue;
    shortest = end - begin;
    base_.swap(event);
    base_time_ = latest_ = end;
  }
}

double EventPool::Now() {
  std::lock_guard lock(mutex_);
  return std::max(HostTime(), latest_);
}

double EventPool::TimeOf(const Handle& event) {
  Handle old;  // Goes when the lock has.
  std::lock_guard lock(mutex_);
  float ms = 0;
  if (cudaEventElapsedTime(&ms, base_.get(), event.get()) != cudaSuccess) {
    return std::max(HostTime(), latest_);
  }
  const double time = base_time_ + ms * 1e-3;
  latest_ = std::max(latest_, time);
  if (ms * 1e-3 > kBaseFor_s) {
    old = std::exchange(base_, event);
    base_time_ = time;
  }
  return time;
}

}  // namespace fsdp
