// Sums over ranks that batch norms ask for in the middle of a run (train.batch_norm: sync). They
// are listed behind their run and done where the model's code asks for them; the compute stream
// waits for each. The list fixes their number and their order on the stream of reductions, behind
// whose earlier work they come on every rank.
// Tests: tests/trainer/fsdp/schedule_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_BATCH_SUMS_H_
#define FSDP_TRAIN_TRAINER_FSDP_BATCH_SUMS_H_

#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/scheduled_runs.h"

namespace fsdp {

// Adds the sums of a run that has just been listed. A recompute takes forward's sums.
inline void AddBatchSums(const ScheduleOptions& options, const ScheduledRun& run,
                         ActionList& list) {
  const bool none = run.pass == Pass::kRecompute;
  for (int i = 0; !none && i < options.segments[run.segment].batch_sums; ++i) {
    list.Add({.kind = ActionKind::kSumBatch,
              .stream = StreamId::kReduce,
              .segment = run.segment,
              .pass = run.pass,
              .micro_batch = run.micro_batch});
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_BATCH_SUMS_H_
