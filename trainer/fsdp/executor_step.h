// The executor's input for a step, and its account when the step is done.
// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_STEP_H_
#define FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_STEP_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/comm/traffic.h"
#include "trainer/core/batch.h"
#include "trainer/core/view.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/step_times.h"
#include "trainer/runtime/caching_allocator.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Tape;

struct ExecutorStep {
  Mode mode = Mode::kTrain;
  int64_t number = 0;      // For Where(): the training step, or the one that an evaluation follows.
  double lr = 0;           // kTrain: the learning rate.
  float target_scale = 1;  // Factor of each target's loss; kTrain: 1 / T0.
  float mean_scale = 1;    // T0 / T: exactly 1 when every target counts.
  float save = 0;          // This rank's wish for a checkpoint; all ranks see the sum.
  // Writes a micro-batch into the host's memory. Called on a stream's thread.
  std::function<void(int micro_batch, const Batch& batch)> load;
  // kTrain, may be null: enqueues the work that all updates share, before them. `inputs`:
  // StepInputs (ops/step_parameters.h). `coefficient` [1] multiplies the gradient; NaN means that
  // nothing may change.
  std::function<void(Stream& stream, ConstView inputs, ConstView coefficient)> begin_update;
  // kTrain: enqueues the update on `stream`. The update writes the copy, too.
  std::function<void(Stream& stream, const ShardUpdate& update)> optimize;
  // kTrain: enqueues an action on matrices. May be null where a schedule has none.
  std::function<void(Stream& stream, const MatrixAction& action)> matrices;
  // kTrain: enqueues the update of a round of rows of embedding tables on `stream`.
  std::function<void(Stream& stream, const RowUpdate& update)> update_rows;
  // kTrain: `load` for the next step, whose ids this one reads. Null: the next step is not known
  // yet.
  std::function<void(int micro_batch, const Batch& batch)> load_next;
  // kEval: shards from NewShards() to gather in place of the master weights', cast on the way where
  // another dtype is computed with. Null: the master weights'.
  const std::vector<View>* weights = nullptr;
  // kEval: the model adds the second sum of its eval_metric(), in the scalar that holds squares in
  // training.
  bool second_sum = false;
  // kEval: what to run on the micro-batch instead of the loss (memory phase kGenerate).
  std::function<void(Tape& tape, const Batch& batch)> forward;
};

// One rank's account of a step.
struct StepAccount {
  StepTimes times;
  int64_t table_rounds = 0;  // Rounds of the exchange of embedding rows; 0: no tables.
  TrafficBytes traffic;      // Bytes that other ranks have taken from this one for the step's
                             // collectives.
  // Peaks of a caching allocator from the step's first action to its last, which the host enqueues
  // at most two steps ahead of the device. Empty: memory is planned.
  std::optional<CachingStatistics> memory;
  // The tallies of the model's buffers (nn/buffer.h), sums over ranks; valid until the step after
  // the next is enqueued.
  std::vector<std::span<const float>> tallies = {};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_STEP_H_
