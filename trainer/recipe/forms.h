// Types of the values that can be written in several forms.
// Tests: tests/trainer/recipe/schema_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_FORMS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_FORMS_H_

#include <string>
#include <vector>

#include "trainer/recipe/recipe.h"
#include "trainer/recipe/types.h"

namespace fsdp::recipe {

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

#endif  // FSDP_TRAIN_TRAINER_RECIPE_FORMS_H_
