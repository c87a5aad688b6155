// A model's buffers on one rank (nn/buffer.h): their values between steps, and a copy that forward
// writes. A training step begins with the copy, or zeros in place of a tally's, and takes it over
// at its end. An evaluation or a save therefore never reads half a step's values, and a step that
// changes no weights changes no buffer.
// Tests: tests/trainer/engine/buffers_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_MODEL_BUFFERS_H_
#define FSDP_TRAIN_TRAINER_FSDP_MODEL_BUFFERS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/nn/buffer.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Model;

class ModelBuffers {
 public:
  // Throws std::invalid_argument where two of the model's tensors have one name.
  explicit ModelBuffers(const Model& model);

  // Takes device memory, and returns memory for `scalars` fp32 values, the step's scalars. They lie
  // right behind the statistics and tallies that forward writes, so one sum over ranks takes all.
  View Place(PhasedAllocator& allocator, int64_t scalars);

  // fp32 values that a training step's sum of scalars over ranks has before them, statistics first.
  int64_t summed() const { return statistics() + tallies(); }
  int64_t tallies() const;
  // Each tally in host memory that WithTallies() was copied to, in the order of buffers().
  std::vector<std::span<const float>> TalliesIn(const View& on_host) const;

  // In the order of the model's segments. Each value has its buffer's shape.
  const std::vector<ModelBuffer*>& buffers() const { return buffers_; }
  const std::vector<View>& values() const { return values_.parts; }

  // Copies through `upload`, host memory. `fill` may be null: each buffer then has its initial
  // value.
  void Initialize(Stream& stream, const View& upload, const FillBuffer& fill) const;

  // The calls of a step, in this order; only training steps make the last three. All enqueue on
  // `stream`.
  void Bind(Mode mode) const;
  void Begin(Stream& stream) const;
  View WithSummed(const View& scalars) const;   // The scalars, with all of summed() before them.
  View WithTallies(const View& scalars) const;  // The scalars, with the tallies before them.
  // `coefficient` as in TakeUnlessNaN() (ops/running_statistics.h); statistics are sums of `ranks`.
  // `bias_rate`: as in MoveBias().
  void Take(Stream& stream, const ConstView& coefficient, int ranks, double bias_rate);

  // For copies of values() on a stream of their own: the next Take() waits for `copied`, and so
  // does a stream in WaitForCopies().
  void Hold(const EventPtr& copied) { copied_ = copied; }
  void WaitForCopies(Stream& stream);

 private:
  static constexpr int kKinds = 4;  // The number of ModelBuffer::Kind.
  // Buffers of one kind side by side, each at a multiple of 64 bytes.
  struct Values {
    std::array<View, kKinds> of;  // By kind. Without data: there are none.
    std::vector<View> parts;
  };
  int64_t statistics() const;
  void Carve(Values& values) const;

  const std::vector<ModelBuffer*> buffers_;
  Values values_, written_;
  EventPtr copied_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MODEL_BUFFERS_H_
