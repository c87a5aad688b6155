// How far a stream has come, in pinned memory: to be read by any thread, also when the GPU has
// faulted and answers no call any more. The GPU writes a number where a section of the work ends;
// a section is what has one tag, a wait, or all up to an event.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROGRESS_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROGRESS_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "trainer/runtime/cuda/cuda_call.h"
#include "trainer/runtime/cuda_stream.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Progress {
 public:
  // `word`: pinned, 0.
  Progress(cudaStream_t stream, StreamValueCall write_value, uint32_t* word, LaunchRoom& room)
      : stream_(stream), write_value_(write_value), word_(word), room_(room) {}

  // What is enqueued next. What of CUDA fails in here, the stream's next call finds too.
  void Enter(const StreamPosition& at, bool wait);
  void EndSection();

  // The first operation of the first section that is not over. From any thread.
  std::optional<StreamPosition> Position() const;

 private:
  struct Section {
    StreamPosition at;
    uint32_t number;
  };

  const cudaStream_t stream_;
  const StreamValueCall write_value_;
  uint32_t* const word_;
  LaunchRoom& room_;
  bool open_ = false, wait_ = false;  // The newest section; of the thread that enqueues.
  uint32_t number_ = 0;
  mutable std::mutex mutex_;  // Guards what follows.
  std::deque<Section> sections_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROGRESS_H_
