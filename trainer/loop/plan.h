// What a run will take, before it takes it: `plan`, --dry-run, and the check before a run
// allocates.
#ifndef FSDP_TRAIN_TRAINER_LOOP_PLAN_H_
#define FSDP_TRAIN_TRAINER_LOOP_PLAN_H_

#include <string>

#include "trainer/loop/session.h"

namespace fsdp {

struct RunPlan {
  int world = 1;
  MemoryPlan memory;  // Of a rank.
  StepTraffic traffic;
  // Bytes a rank takes besides: the program and its libraries as they are resident now, the
  // packing buffers of matrix products, stacks, and its share of the communicators' shared memory.
  int64_t outside = 0;
  // Bytes that this host could give to a rank now; 0: unknown.
  int64_t available = 0;
  uint64_t schedule_hash = 0;

  int64_t total() const { return memory.bytes + outside; }
  bool fits() const { return available == 0 || total() <= available; }
};

// Bytes that the kernel would give out without swapping, and no more than the control group may
// have. 0: unknown.
int64_t AvailableMemory();

// `local_world` ranks share the host's memory.
RunPlan PlanRun(Model& model, const SessionOptions& options, int world, int local_world);

std::string PlanToJson(const RunPlan& plan);  // interface.md; what is not known yet is null.
std::string PlanToText(const RunPlan& plan);

// Throws MemoryError that says by how much it does not fit, with the cheapest cures first: each is
// the same recipe with one setting changed, planned again.
void RequireFit(Model& model, const SessionOptions& options, const RunPlan& plan, int local_world);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PLAN_H_
