// fsdp.cpu_offload.optimizer_share: auto, made a number before a run's memory is planned.
#ifndef FSDP_TRAIN_TRAINER_LOOP_SHARE_CHOICE_H_
#define FSDP_TRAIN_TRAINER_LOOP_SHARE_CHOICE_H_

#include <string>

#include "trainer/engine/plan.h"
#include "trainer/engine/session.h"
#include "trainer/loop/job.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

// Puts the number into `recipe` and `options`, which are of one another: that of the run which it
// goes on with, and otherwise the smallest of what the ranks have measured, all at once
// (engine/update_share.h). Returns a line for people, or nothing where the recipe gives a number.
// All ranks call it, whatever theirs gives, and it blocks. Where some say auto and some do not, it
// stays: they find out by what they compare next. Throws as Together() does.
std::string ResolveShare(const Job& job, const PlanTarget& target, Model& model, Recipe& recipe,
                         SessionOptions& options);

// The same on this machine, for a rank that is only planned: it measures alone. The line
// has its end.
std::string ResolveShareToPlan(const ChosenDevice& device, int world, int local_world,
                               const PlanTarget& target, Model& model, Recipe& recipe,
                               SessionOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_SHARE_CHOICE_H_
