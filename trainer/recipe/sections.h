// The recipe's sections: each a map of keys.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_SECTIONS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_SECTIONS_H_

#include <string>
#include <vector>

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

// Types of the values that can be written in several forms: forms.cc.

// data.*.paths: a list, or one text in place of a list of one.
Type<std::vector<std::string>> Paths();

// data.*.tokenizer: `bytes` or a path.
Type<std::string> TokenizerName();

// data.train: one source, or a list.
Type<TrainRecipeSources> TrainSources(const Type<SourceRecipe>& one,
                                      const Type<SourceRecipe>& of_list);

// data.valid: null, {fraction}, a source, or a list.
Type<ValidRecipe> ValidSources(const Type<HeldOut>& held_out, const Type<SourceRecipe>& source,
                               const Type<SourceRecipe>& of_list);

// checkpoint.resume: a word, a step or a directory.
Type<ResumeRecipe> Resume();

// train.steps: null, which is 0, or a number of at least 1.
Type<int64_t> StepsOrNull();

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_SECTIONS_H_
