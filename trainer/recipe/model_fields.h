// The fields of all families: one recipe key for each name, however many families have it.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_MODEL_FIELDS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_MODEL_FIELDS_H_

#include <string>
#include <string_view>
#include <vector>

#include "models/field.h"

namespace fsdp::recipe {

// The field that a tokenizer decides, in families that have it.
inline constexpr std::string_view kVocabulary = "vocab_size";

struct ModelField {
  Field field;              // The first family's, with the widest range of all.
  std::string description;  // For docs/recipe.md: the families, the text, each one's default.
};

// Each name once, in an order that is every family's own. FSDP_CHECKs that families agree about a
// field's type.
const std::vector<ModelField>& ModelFields();

// The values of checkpoint.allow_changed: keys, the dropouts of all families first; `schedule`, the
// whole section; and `records`, which is metrics.jsonl.
std::vector<std::string> AllowedChanges();

// Sets dropouts that are not given to 0.
void FillDropouts(FieldValues& fields);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_MODEL_FIELDS_H_
