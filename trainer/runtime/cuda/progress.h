// How far a stream has come. The GPU writes a number into pinned memory where a section of the work
// ends. Any thread can read it, also when the GPU has faulted and answers no call any more. A
// section is the work with one tag, a wait, or all work up to an event.
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

  // Announces the next enqueued work. A CUDA error in here shows again in the stream's next call.
  void Enter(const StreamPosition& at, bool wait);
  void EndSection();

  // The first operation of the first section that is not over. Any thread may call.
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
  bool open_ = false, wait_ = false;  // The newest section; for the enqueuing thread alone.
  uint32_t number_ = 0;
  mutable std::mutex mutex_;  // Guards what follows.
  std::deque<Section> sections_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROGRESS_H_
