// The runs of the model's code in the order of a step, around which a schedule is built.
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
  // Whether this is its segment's first run on the way back.
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

  // Whether the run reads parameters of its unit, or of `unit`.
  bool Reads(const ScheduledRun& run) const { return Reads(run, run.unit); }
  bool Reads(const ScheduledRun& run, int unit) const {
    if (unit == 0 && options_.segments[run.segment].reads_root) return true;
    if (run.unit != unit) return false;
    return run.pass != Pass::kBackward || options_.segments[run.segment].read_in_backward;
  }
  // Whether nothing in the step reads the unit's parameters after run r. With `outside: root` the
  // root is in use until the step's last run, as in PyTorch FSDP.
  bool IsLastUse(size_t r, int unit) const;
  // Whether the unit of forward run r is read again on the way back, in its micro-batch.
  bool IsReadBackward(size_t r) const;
  // The unit of the next run after r whose unit is another one and takes part in prefetching, in
  // the same pass direction of the same micro-batch; -1 if there is none.
  int NextUnit(size_t r) const;
  // The unit of the next backward run after r whose unit trains and is another one, in the same
  // micro-batch; after a forward run, any unit that trains. -1 if there is none.
  int NextGradient(size_t r) const;
  // Whether no later run of the micro-batch has run r's unit.
  bool IsLastOfUnit(size_t r) const;

 private:
  const ScheduleOptions& options_;
  std::vector<ScheduledRun> runs_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SCHEDULED_RUNS_H_
