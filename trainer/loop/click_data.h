// The sources of a run of clicks.
// Tests: tests/trainer/loop/clicks_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_CLICK_DATA_H_
#define FSDP_TRAIN_TRAINER_LOOP_CLICK_DATA_H_

#include <cstdint>
#include <functional>
#include <string>

#include "trainer/data/data_files.h"
#include "trainer/loop/row_loaders.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

class Model;

// Whether a source of the recipe is clicks.
bool ReadsClicks(const DataRecipe& data);

// `model`: its inputs are IsOfClicks(), and it has a table for each categorical column. Adds the
// sources' files to `files`. `remark` (may be null) hears for each evaluation of planted clicks how
// low a model's loss can get. Throws DataError; ConfigError where clicks stand beside drawn
// sources.
RowLoaders OpenClickData(const Recipe& recipe, const Model& model, int data_ranks, uint64_t seed,
                         const ValidRecipe& held_out,
                         const std::function<void(const std::string&)>& remark, DataFiles& files);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_CLICK_DATA_H_
