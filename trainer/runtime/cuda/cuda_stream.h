// A stream of a CUDA device: see cuda_device.h for how it works.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_STREAM_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_STREAM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/span.h"
#include "trainer/runtime/cuda/for_communicators.h"
#include "trainer/runtime/cuda/gpu_state.h"
#include "trainer/runtime/cuda/host_worker.h"
#include "trainer/runtime/cuda/progress.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

class CudaStream;

// A device's trace. The device outlives its streams.
struct CudaTrace {
  std::atomic<bool> on{false};
  std::mutex mutex;  // Guards what follows.
  std::vector<CudaStream*> streams;
  std::vector<Span> of_ended;  // From streams that are gone.
};

class CudaStream final : public Stream {
 public:
  // Throws DeviceError.
  CudaStream(Device& device, std::shared_ptr<GpuState> state, CudaTrace& trace, std::string name,
             int threads, StreamPriority priority);
  ~CudaStream() override;

  std::optional<StreamPosition> Position() const override;
  void MoveSpans(std::vector<Span>& to);  // Only while the stream is idle.
  FailHere MayFailHere(const char* name);

 private:
  // From cudaStreamCreate and cudaHostAlloc.
  struct Resources {
    Resources(int gpu, StreamPriority priority);
    ~Resources();
    cudaStream_t stream = nullptr;
    uint32_t* words =
        nullptr;  // Pinned: two of the host's work, of the progress, of the run-ahead.
  };
  struct TimedSpan {
    const char* name;
    EventPool::Handle begin, end;
    uint64_t tag;
    int64_t bytes;
  };

  void DoEnqueue(Operation operation) override;
  std::shared_ptr<Event> DoRecord(bool timed) override;
  void DoWait(const EventPtr& event) override;

  // Calls `work`, which puts operation `name` on the stream, and marks its begin and end. Does
  // nothing if the device has failed.
  template <typename Work>
  void Put(const char* name, int64_t bytes, bool wait, const Work& work);
  EventPool::Handle Mark(bool timed);  // Records an event. Null: the device has failed.
  void Launch(const char* name, const CudaKernel& kernel);
  void PutHostTask(HostTask task);
  uint64_t TakeTicket();  // A ticket for work that may throw; whatever is enqueued next comes
                          // behind it.
  HostWorker& Worker();   // Throws DeviceError.
  bool StillWorks();      // Asks the GPU where a call may not have reported its fault.

  const std::shared_ptr<GpuState> state_;
  CudaTrace& trace_;
  const int threads_;
  const Resources resources_;
  const int index_;
  RunAhead run_ahead_;
  Progress progress_;
  VectorClock before_;  // Everything that comes before the next enqueued work.
  std::vector<TimedSpan> spans_;
  mutable std::mutex mutex_;  // Guards the pointer.
  std::unique_ptr<HostWorker> worker_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_STREAM_H_
