// Limits how far the host runs ahead of a stream. The driver holds about 1,024 operations of a
// stream. A launch that finds no room waits inside the driver, and other threads' calls may then
// wait for its lock (docs/contributing.md, "GPU rules"), even those of the thread whose host work
// the stream waits for. The host therefore waits earlier, outside CUDA: for the operation kAhead
// before, by a word in pinned memory that the stream writes every kBetweenMarks operations.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_RUN_AHEAD_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_RUN_AHEAD_H_

#include <cstdint>
#include <functional>

#include "trainer/runtime/cuda/cuda_call.h"
#include "trainer/runtime/cuda_stream.h"

namespace fsdp {

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_RUN_AHEAD_H_
