// An operation's position in a step: as a tag that streams carry, and in words.
#ifndef FSDP_TRAIN_TRAINER_FSDP_STEP_POSITION_H_
#define FSDP_TRAIN_TRAINER_FSDP_STEP_POSITION_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "trainer/core/span.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

struct StepPosition {
  Mode mode = Mode::kTrain;
  int64_t step = 0;   // kEval: the training step that it follows.
  size_t action = 0;  // Its index in the schedule of `mode`.

  bool operator==(const StepPosition&) const = default;
};

// Steps below 2^39, actions below 2^24.
uint64_t TagOf(const StepPosition& position);
StepPosition PositionOf(uint64_t tag);

// The part of a step at a position. A gather belongs to the run that it is for.
StepPart PartOf(const StepPosition& position, const Schedule& schedule, const Layout& layout);

// "step 12, backward of unit 5 (transformer.h.4)": without the unit where the action has none.
std::string Describe(const StepPosition& position, const Schedule& schedule, const Layout& layout);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_STEP_POSITION_H_
