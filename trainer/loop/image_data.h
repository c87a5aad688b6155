// The sources of a run of images.
// Tests: tests/trainer/loop/images_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_IMAGE_DATA_H_
#define FSDP_TRAIN_TRAINER_LOOP_IMAGE_DATA_H_

#include <cstdint>

#include "trainer/core/batch.h"
#include "trainer/data/data_files.h"
#include "trainer/loop/row_loaders.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

// Whether a source of the recipe is images.
bool ReadsImages(const DataRecipe& data);

// `spec`: IsOfImages(). Adds the sources' files to `files`. Throws DataError; ConfigError where
// images stand beside drawn sources.
RowLoaders OpenImageData(const Recipe& recipe, const BatchSpec& spec, int data_ranks, uint64_t seed,
                         const ValidRecipe& held_out, DataFiles& files);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_IMAGE_DATA_H_
