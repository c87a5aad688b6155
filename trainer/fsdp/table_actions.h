// The actions of a step on embedding tables outside FSDP (table_exchange.h), around its runs.
//
//   begin     reduce   turn: the route made in the step before becomes this step's.
//             reduce   fetch: ids go to the ranks of their rows, rows come back, once a step.
//   the last micro-batch, with its first run
//             data     route: reads the next step's ids and makes their route.
//             reduce   agree, behind its forward: ranks agree on the rounds of the next step.
//   before the first backward of segment 0
//             compute  clear: zeroes the sums of gradients.
//   behind the last run
//             compute  check: whether the sums are finite.
//             reduce   send: sends the sums of the first round, beside the norm.
//   behind the norm
//             reduce   update: updates the rows that this rank has, round by round.
//
// Runs of segment 0 read the rows, and their backward adds to the sums. An evaluation has turn and
// fetch alone.
// Tests: tests/trainer/fsdp/table_actions_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_TABLE_ACTIONS_H_
#define FSDP_TRAIN_TRAINER_FSDP_TABLE_ACTIONS_H_

#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/scheduled_runs.h"

namespace fsdp {

// Lists actions of one step; nothing where the model has no tables. Keeps references.
class TableActions {
 public:
  TableActions(const ScheduleOptions& options, ActionList& list) : o_(options), list_(list) {}

  void Begin();
  // Lists the actions before a run that is about to be listed as `action`, and adds the run's own
  // uses to `action`.
  void Before(const ScheduledRun& run, Action& action);
  void Behind(const ScheduledRun& run);
  void BeforeNorm();
  void Update();  // The norm is known.

 private:
  bool IsLast(const ScheduledRun& run) const {
    return o_.mode == Mode::kTrain && run.micro_batch == o_.micro_batches - 1;
  }
  void Add(ActionKind kind, StreamId stream, std::vector<Use> reads, std::vector<Use> writes);

  const ScheduleOptions& o_;
  ActionList& list_;
  bool cleared_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_TABLE_ACTIONS_H_
