// The model's code in the order of a step: what a schedule is built around.
// Tests: tests/trainer/fsdp/schedule_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_SCHEDULED_RUNS_H_
#define FSDP_TRAIN_TRAINER_FSDP_SCHEDULED_RUNS_H_

#include <cstddef>
#include <vector>

#include "trainer/fsdp/schedule.h"

namespace fsdp {

struct ScheduledRun {
  int micro_batch, segment, unit;
  Pass pass;
  bool backward() const { return pass != Pass::kForward; }
  // The first of its segment on the way back.
  bool comes_back(const ScheduleOptions& options) const {
    return pass == Pass::kRecompute ||
           (pass == Pass::kBackward && !options.segments[segment].recomputed);
  }
};

class ScheduledRuns {
 public:
  // Keeps the reference.
  explicit ScheduledRuns(const ScheduleOptions& options);

  size_t size() const { return runs_.size(); }
  const ScheduledRun& operator[](size_t r) const { return runs_[r]; }

  // Whether the run reads parameters of its unit, or of another.
  bool Reads(const ScheduledRun& run) const { return Reads(run, run.unit); }
  bool Reads(const ScheduledRun& run, int unit) const {
    if (unit == 0 && options_.segments[run.segment].reads_root) return true;
    if (run.unit != unit) return false;
    return run.pass != Pass::kBackward || options_.segments[run.segment].read_in_backward;
  }
  // Nothing in the step reads the unit's parameters after run r. With `outside: root` the root is
  // in use until the step's last run, as PyTorch FSDP has it.
  bool IsLastUse(size_t r, int unit) const;
  // The unit of forward run r is read again on the way back, in its micro-batch.
  bool IsReadBackward(size_t r) const;
  // Of the next run after r of another unit that takes part in prefetching, in the same pass
  // direction of the same micro-batch; -1 if there is none.
  int NextUnit(size_t r) const;
  // Of the next backward run after r of another unit that trains, in the same micro-batch; with a
  // run forward, of any such unit. -1 if there is none.
  int NextGradient(size_t r) const;
  // Of run r no later one of its micro-batch is of its unit.
  bool IsLastOfUnit(size_t r) const;

 private:
  const ScheduleOptions& options_;
  std::vector<ScheduledRun> runs_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SCHEDULED_RUNS_H_
