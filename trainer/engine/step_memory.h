// The memory that a training step has in use over time, where memory is planned by offsets
// (fsdp/memory_plan.h). The plan holds all of it for the whole run; in use is the part whose
// contents are still needed:
//
//   always      Memory that lives as long as the run: shards, state, staging. A unit's value or
//               gradient that no action gives back.
//   by actions  A unit's value, its gradient and its reduced gradient, from the begin of the action
//               that takes their memory to the end of the action that gives it back. Data that
//               travels in another form, during its collective. Buffers of updates alone, from
//               the clipping to the end of the last update.
//   by runs     Activations and working memory of a micro-batch: during each action of the compute
//               stream, the most that it needs at a time.
// Tests: tests/trainer/engine/step_memory_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_STEP_MEMORY_H_
#define FSDP_TRAIN_TRAINER_ENGINE_STEP_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trainer/core/memory_point.h"
#include "trainer/core/span.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/storage.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class Model;

class StepMemory {
 public:
  // Records a training step of rank 0 of `world` on the simulated device, for a device with
  // `kernels`. Counts the device's memory, and for a CPU the host's, too, as RunPlan::planned()
  // does. Requires buffers kSlots. The model must not be in a step of another session.
  StepMemory(Model& model, const SessionOptions& options, int world, DeviceType kernels);

  // The points of the last training step that `spans` have: those of all streams of a rank, tagged
  // as its executor does (fsdp/step_position.h). An action without a span is where the work before
  // it on its stream ends. `planned`: bytes of the plan. Empty where there is no span of a step.
  std::vector<MemoryPoint> Over(std::span<const Span> spans, int64_t planned) const;

 private:
  struct Part {  // From the begin of one action to the end of another.
    size_t from = 0, to = 0;
    int64_t bytes = 0;
  };
  void AddUnits(const Schedule& train, const Storage& storage);
  void AddTravels(const Schedule& train, const Storage& storage);
  void AddUpdates(const Schedule& train, int64_t bytes);

  int64_t always_ = 0;
  std::vector<Part> parts_;
  std::vector<StreamId> streams_;  // By action.
  std::vector<int64_t> working_;   // By action: by runs. -1: it enqueues nothing on kCompute.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_STEP_MEMORY_H_
