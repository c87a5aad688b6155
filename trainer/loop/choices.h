// The list of all choices, and how one is made.
#ifndef FSDP_TRAIN_TRAINER_LOOP_CHOICES_H_
#define FSDP_TRAIN_TRAINER_LOOP_CHOICES_H_

#include <vector>

#include "trainer/loop/choice.h"

namespace fsdp {

const char* Name(ChoiceId id);  // "library", ...

// The order is that in which they are made: later ones stand on earlier ones.
const std::vector<const Choice*>& AllChoices();

// Takes the five steps and adds to choosing.run.chosen. All ranks of the place's job call it;
// blocks for them where they meet. Throws Error; as Together() does where ranks are asked together.
void Make(const Choice& choice, Choosing& choosing);
// Makes all choices of the list that are due at `when`.
void MakeAll(Choice::When when, Choosing& choosing);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_CHOICES_H_
