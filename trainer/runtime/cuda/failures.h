// Failures of a device that cannot drop work: a GPU goes on behind a failure. Each stream therefore
// keeps a vector clock of the work before it that may throw. An event has failed if any work before
// it has. No CUDA in here.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FAILURES_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FAILURES_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "trainer/runtime/stream.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

// A ticket is the number of work that may throw. Tickets count from 1 over all streams of a device,
// in the order in which the work was enqueued. Entry s of a clock is the newest ticket of stream s
// that comes before.
void Merge(const VectorClock& from, VectorClock& into);

// Any thread may call.
class Failures {
 public:
  int AddStream();

  // The stream's first failure counts. `at`: for messages.
  void Fail(int stream, uint64_t ticket, std::exception_ptr error, const StreamPosition& at);
  // Fails the device: all work that is not known to have passed has failed. The first call counts.
  void FailDevice(std::exception_ptr error);
  bool device_failed() const { return device_failed_.load(std::memory_order_acquire); }

  // The error of work that comes behind `before` on the stream; null if there is none. The stream's
  // own error comes first: its work had run, so nothing before that had failed. Then comes the
  // error of another stream's work, the one enqueued first. Call it only once all work in the clock
  // is over.
  std::exception_ptr Find(int stream, const VectorClock& before) const;
  std::exception_ptr device_error() const;  // Null if it has not failed.

  // The place where the stream itself has failed.
  std::optional<StreamPosition> Position(int stream) const;

 private:
  struct First {
    uint64_t ticket = 0;  // 0: nothing has failed.
    std::exception_ptr error;
    StreamPosition at;
  };

  std::atomic<bool> any_{false};  // Some stream has failed.
  std::atomic<bool> device_failed_{false};
  mutable std::mutex mutex_;  // Guards what follows.
  std::vector<First> streams_;
  std::exception_ptr device_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FAILURES_H_
