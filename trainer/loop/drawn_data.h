// Tests: tests/trainer/loop/images_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_DRAWN_DATA_H_
#define FSDP_TRAIN_TRAINER_LOOP_DRAWN_DATA_H_

#include <cstdint>

#include "trainer/core/batch.h"
#include "trainer/loop/row_loaders.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

// Loaders for a model that is fed no tokens. All its sources are synthetic.
RowLoaders OpenDrawn(const Recipe& recipe, const BatchSpec& spec, int data_ranks, uint64_t seed,
                     const ValidRecipe& held_out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_DRAWN_DATA_H_
