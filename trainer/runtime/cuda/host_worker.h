// The thread of a CUDA stream that does the host's work in the stream's order. The stream writes a
// word in pinned memory when the thread's turn has come. The thread makes no CUDA call: the driver
// may hold a lock for a call that waits for this very work (docs/contributing.md, "GPU rules").
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_HOST_WORKER_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_HOST_WORKER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "trainer/runtime/cuda/gpu_state.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct HostTask {
  VectorClock clock;  // A failure in the clock drops the task.
  CpuKernel kernel;   // Null: the task waits for `awaited`.
  EventPtr awaited;
  uint64_t ticket = 0;  // The task begins when the stream reaches this ticket.
  StreamPosition at;
};

class HostWorker {
 public:
  // `reached` and `done` are pinned words that hold tickets, which count round. `reached`: the task
  // that the stream has come to. `done`: the newest task that is over, whatever its result; its
  // captures are gone by then. Throws std::system_error.
  HostWorker(GpuState& state, int stream, int threads, uint32_t* reached, uint32_t* done);
  ~HostWorker();  // Waits until all tasks are over. A fault of the GPU must be known by then.
  HostWorker(const HostWorker&) = delete;
  HostWorker& operator=(const HostWorker&) = delete;

  void Push(HostTask task);
  std::optional<StreamPosition> Position() const;  // From any thread.

 private:
  void Work();
  bool Reached(uint32_t ticket) const;  // Blocks. False: the device has failed.
  void Run(const HostTask& task);

  GpuState& state_;
  const int stream_;
  uint32_t* const reached_;
  uint32_t* const done_;
  ThreadPool pool_;
  mutable std::mutex mutex_;  // Guards what follows, except the thread.
  std::condition_variable wake_;
  std::deque<HostTask> queue_;
  std::optional<StreamPosition> position_;
  bool stop_ = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_HOST_WORKER_H_
