// Where in the memory of slots each unit lies that takes one. Slots are taken in turn (schedule.h),
// so of n slots the units of n takes that follow one another are there together, and no others:
// they lie apart, and share no more than that. So units of unequal size need the largest sum of
// neighbours, not as many times the largest unit.
//
// Why a take may lie where any but the n - 1 before it lay: it waits for all uses of the n-th
// before it, and units are used one after the other in the order in which they take slots. Over
// steps, too: the first takes of a step follow the last ones of the step before, unless they wait
// for its updates, and so for all that it did with slots. Tests:
// tests/trainer/fsdp/slot_places_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_SLOT_PLACES_H_
#define FSDP_TRAIN_TRAINER_FSDP_SLOT_PLACES_H_

#include <cstdint>
#include <vector>

#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

struct SlotPlaces {
  int64_t bytes = 0;                  // Of all slots; 0: there are none.
  std::vector<int64_t> offsets = {};  // By action, of what it takes; -1: it takes no slot.
};

SlotPlaces PlacesOfGathers(const Schedule& schedule, const Layout& layout);
SlotPlaces PlacesOfGradients(const Schedule& schedule, const Layout& layout);

// The same for a step's takes of `slots` slots, in order, each of a multiple of 64 bytes; `offsets`
// is by take. `wraps`: the last are followed by the first. The bytes of all: at most `slots` times
// the largest take; for two slots the largest sum of two that follow one another.
int64_t PlaceInTurn(const std::vector<int64_t>& takes, int slots, bool wraps,
                    std::vector<int64_t>& offsets);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SLOT_PLACES_H_
