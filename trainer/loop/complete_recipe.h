// Fills in what a recipe leaves to files: weights to begin with, the tokenizer beside them, and the
// vocabulary of a tokenizer.
// Tests: tests/trainer/loop/complete_recipe_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_COMPLETE_RECIPE_H_
#define FSDP_TRAIN_TRAINER_LOOP_COMPLETE_RECIPE_H_

#include <vector>

namespace fsdp {

struct Recipe;
struct ShapeConflict;

// A RecipeCompletion (recipe/load.h). It changes one key that the user wrote: a run directory in
// model.init_from becomes its latest checkpoint, so that all ranks begin with the same one.
//
//   tokenizer   Under model.init_from, of text: the one beside the weights. A mistake where none
//               is there.
//   vocab_size  Without init_from and preset: the size of the sources' tokenizer, rounded up to a
//               multiple of model.vocab_multiple. The family's default where the file cannot be
//               read; where tokenizers disagree, or no source has one, it is left open.
//   num_labels  Under model.init_from without a head: the classes of data.train, where folders
//               name them.
//   keep_fp32   In fp16: what the family keeps in fp32, where fsdp.mixed_precision does not say.
//
// Notes say where init_from's files are read otherwise than their config.json says
// (InitialNotes()).
//
// A run that goes on takes what its checkpoint says in place of all of these. Each finding becomes
// one of `recipe.notes`. Where init_from cannot be read nothing is filled in: the run says why.
std::vector<ShapeConflict> CompleteRecipe(Recipe& recipe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_COMPLETE_RECIPE_H_
