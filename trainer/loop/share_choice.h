// fsdp.cpu_offload.optimizer_share: auto, made a number before a run's memory is planned.
#ifndef FSDP_TRAIN_TRAINER_LOOP_SHARE_CHOICE_H_
#define FSDP_TRAIN_TRAINER_LOOP_SHARE_CHOICE_H_

#include "trainer/loop/choice.h"

namespace fsdp {

// ChoiceId::kShare, into the run's recipe and options. Where the recipe gives a number there is
// nothing to choose. Otherwise the share is that of the run which the recipe goes on with, as rank
// 0 finds it, or the smallest that the ranks measure, all at once (engine/update_share.h). Where
// some ranks say auto and some do not, nothing is chosen: the next comparison of ranks shows the
// difference. A place without a device measures on this machine; where that is not the place's, it
// throws ConfigError.
const Choice& ShareChoice();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_SHARE_CHOICE_H_
