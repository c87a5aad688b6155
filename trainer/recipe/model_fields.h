// The fields of all families under the names of recipes: one key each, whosoever they are.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_MODEL_FIELDS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_MODEL_FIELDS_H_

#include <string>
#include <string_view>
#include <vector>

#include "models/field.h"
#include "models/shape.h"
#include "trainer/recipe/recipe.h"

namespace fsdp::recipe {

// The field whose size a tokenizer decides, where the family has it.
inline constexpr std::string_view kVocabulary = "vocab_size";

struct ModelField {
  Field field;              // Of several families: the first one's, with the widest range.
  std::string description;  // For docs/recipe.md: whose it is, and every family's standard.
};

// Each name once, in an order that is every family's own. FSDP_CHECKs that families agree about a
// field's type.
const std::vector<ModelField>& ModelFields();

// What a resume may find changed, as checkpoint.allow_changed calls it: keys, the dropouts of all
// families first; `schedule`, a section with all its keys; and `records`, which is metrics.jsonl.
std::vector<std::string> AllowedChanges();

// Gives dropouts that nobody has given 0.
void FillDropouts(ModelRecipe& model);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_MODEL_FIELDS_H_
