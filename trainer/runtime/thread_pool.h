// The compute threads of one CPU stream. Work is split by shape and thread count alone, never by
// who is faster, so the bits of a result do not depend on timing.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_THREAD_POOL_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace fsdp {

// Sets the calling thread to round results too small for a normal float to zero, and to read such
// operands as zero. Otherwise a processor takes tens of times as long for each, and a training step
// has whole tensors of them where a softmax is sharp (measured: a head and loss took 60 times as
// long). Pools and streams call it in the threads that they start, so all threads compute alike.
void FlushSubnormals();

class ThreadPool {
 public:
  // `threads` >= 1 includes the calling thread. `spin`: helpers poll for a while before they sleep;
  // right only while all ranks together have no more threads than cores. Throws std::system_error
  // when the machine has no more threads to give.
  ThreadPool(int threads, bool spin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls task(t) once for each t in [0, size()), each on its own thread, and returns when all are
  // done. Rethrows the first exception in order of t. Not to be called from inside a task.
  void Run(const std::function<void(int t)>& task);

  // Splits [0, n) into at most size() contiguous parts, borders at multiples of `grain`, and calls
  // body(begin, end) for each part that is not empty.
  void ParallelFor(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

  // Part t of ParallelFor's split among `parts` threads, for callers that keep data for each part.
  // 0 <= t < parts; grain > 0.
  static std::pair<int64_t, int64_t> Part(int64_t n, int64_t grain, int parts, int t);

 private:
  void Help(int t);
  void Join() noexcept;

  const bool spin_;
  std::atomic<uint32_t> generation_{0};  // Counts calls of Run(); helpers wait for the next one.
  std::atomic<uint32_t> running_{0};     // Helpers not yet done with this call.
  std::atomic<bool> stop_{false};
  const std::function<void(int)>* task_ = nullptr;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> helpers_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_THREAD_POOL_H_
