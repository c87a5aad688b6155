// Places in the memory of slots for the units that take one. Slots are taken in turn (schedule.h),
// so only the units of n successive takes are in n slots together, and only these must lie apart.
// Units of unequal size therefore need the largest sum of n successive ones, not n times the
// largest unit.
//
// A take may overlap all earlier takes but the n - 1 before it: it waits for all uses of the n-th
// before it, and units are used one after the other in the order in which they take slots. This
// holds over steps, too: the first takes of a step follow the last ones of the step before, unless
// they wait for that step's updates, and so for all its uses of slots.
// Tests: tests/trainer/fsdp/slot_places_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_SLOT_PLACES_H_
#define FSDP_TRAIN_TRAINER_FSDP_SLOT_PLACES_H_

#include <cstdint>
#include <vector>

#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

struct SlotPlaces {
  int64_t bytes = 0;                  // For all slots; 0: there are none.
  std::vector<int64_t> offsets = {};  // By action: the offset of its slot; -1: none.
};

SlotPlaces PlacesOfGathers(const Schedule& schedule, const Layout& layout);
SlotPlaces PlacesOfGradients(const Schedule& schedule, const Layout& layout);

// Places a step's takes of `slots` slots, in order, each a multiple of 64 bytes, and sets
// `offsets`, by take. `wraps`: the first takes follow the last. Returns the bytes of all: at most
// `slots` times the largest take; for two slots the largest sum of two successive takes.
int64_t PlaceInTurn(const std::vector<int64_t>& takes, int slots, bool wraps,
                    std::vector<int64_t>& offsets);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SLOT_PLACES_H_
