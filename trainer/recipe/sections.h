// The recipe's sections: each a map of keys.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_SECTIONS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_SECTIONS_H_

#include "trainer/recipe/recipe.h"
#include "trainer/recipe/types.h"

namespace fsdp::recipe {

Type<RunRecipe> RunType();
Type<ModelRecipe> ModelType();
Type<DataRecipe> DataType();
Type<TrainRecipe> TrainType();
Type<EvalRecipe> EvalType();
Type<OptimizerRecipe> OptimizerType();
Type<ScheduleRecipe> ScheduleType();
Type<FsdpOptions> FsdpType();
Type<CheckpointRecipe> CheckpointType();
Type<LogRecipe> LogType();

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_SECTIONS_H_
