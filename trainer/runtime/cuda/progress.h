// How far a stream has come, by words in pinned memory that the GPU writes. Any thread can read
// them, also when the GPU has faulted and answers no call any more.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROGRESS_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROGRESS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "trainer/runtime/cuda/cuda_call.h"
#include "trainer/runtime/cuda_stream_handle.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Limits how far the host runs ahead of a stream. The driver holds about 1,024 operations of a
// stream. A launch that finds no room waits inside the driver, and other threads' calls may then
// wait for its lock (docs/contributing.md, "GPU rules"), even those of the thread whose host work
// the stream waits for. The host therefore waits earlier, outside CUDA: for the operation kAhead
// before, by a word in pinned memory that the stream writes every kBetweenMarks operations.
class RunAhead final : public LaunchRoom {
 public:
  // A stream has at most kMostOutstanding operations outstanding.
  static constexpr int64_t kAhead = 512, kBetweenMarks = 64, kMostAtOnce = 16;
  static constexpr int64_t kMostOutstanding = kAhead + kBetweenMarks + kMostAtOnce;

  // `word`: pinned, 0. `works`: whether the GPU works; called about every 10 ms of waiting.
  RunAhead(cudaStream_t stream, StreamValueCall write_value, uint32_t* word,
           std::function<bool()> works)
      : stream_(stream), write_value_(write_value), word_(word), works_(std::move(works)) {}

  // `operations`: at most kMostAtOnce.
  void Take(int64_t operations) override;

 private:
  int64_t Outstanding() const;

  const cudaStream_t stream_;
  const StreamValueCall write_value_;
  uint32_t* const word_;
  const std::function<bool()> works_;
  uint32_t put_ = 0, marked_ = 0;  // Numbers of operations; they count round.
};

// Numbers the sections of a stream's work; the GPU writes a section's number where it ends. A
// section is the work with one tag, a wait, or all work up to an event.
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
