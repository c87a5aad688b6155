// What a run will take, before it takes it: `plan`, --dry-run, and the check before a run
// allocates.
#ifndef FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_
#define FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_

#include <optional>
#include <string>

#include "trainer/engine/host_memory.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"
#include "trainer/launch/memory_limits.h"

namespace fsdp {

struct RunPlan {
  int world = 1, local_world = 1;  // local_world: of one host.
  MemoryPlan memory;               // Of a rank.
  StepTraffic traffic;
  int64_t outside = 0;                  // Bytes a rank takes besides: OutsideMemory.
  std::optional<MemoryRoom> available;  // To a rank, now. Empty: unknown.
  uint64_t schedule_hash = 0;

  int64_t total() const { return memory.bytes() + outside; }
  bool fits() const { return !available || total() <= available->bytes; }
};

// `local_world` ranks share the host's memory.
RunPlan PlanRun(Model& model, const SessionOptions& options, int world, int local_world,
                const MemoryLimits& limits = MemoryLimits());

std::string PlanToJson(const RunPlan& plan);  // What is not known yet is null.
std::string PlanToText(const RunPlan& plan);

// Throws MemoryError that says by how much it does not fit, with the cheapest cures first: each is
// the same recipe with one setting changed, planned again.
void RequireFit(Model& model, const SessionOptions& options, const RunPlan& plan, int local_world,
                const MemoryLimits& limits = MemoryLimits());

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_
