// What counts as failed on a device that cannot drop work: a GPU goes on behind a failure. So each
// stream knows, by a vector clock, which work that may throw comes before its own; an event has
// failed if any of what comes before it has. No CUDA in here.
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

// Tickets number what may throw through all streams of a device, from 1, in the order in which it
// was enqueued. Entry s of a clock is the newest ticket of stream s that comes before.
void Merge(const VectorClock& from, VectorClock& into);

// From any thread.
class Failures {
 public:
  int AddStream();

  // What of the stream fails first counts. `at`: for messages.
  void Fail(int stream, uint64_t ticket, std::exception_ptr error, const StreamPosition& at);
  // The device itself: all that is not known to have passed has failed. The first one counts.
  void FailDevice(std::exception_ptr error);
  bool device_failed() const { return device_failed_.load(std::memory_order_acquire); }

  // Why what comes behind `before` on the stream has failed; null if it has not. The stream's own
  // error (what threw had run, so nothing before it had failed), or of those of others the one that
  // was enqueued first. Only once all that is in the clock is over.
  std::exception_ptr Find(int stream, const VectorClock& before) const;
  std::exception_ptr device_error() const;  // Null if it has not failed.

  // Where the stream itself has failed.
  std::optional<StreamPosition> Position(int stream) const;

 private:
  struct First {
    uint64_t ticket = 0;  // 0: nothing has failed.
    std::exception_ptr error;
    StreamPosition at;
  };

  std::atomic<bool> any_{false};  // Anything has failed, of a stream.
  std::atomic<bool> device_failed_{false};
  mutable std::mutex mutex_;  // Guards what follows.
  std::vector<First> streams_;
  std::exception_ptr device_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FAILURES_H_
