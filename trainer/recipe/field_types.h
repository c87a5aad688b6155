// Types of a family's fields, which are entries of a map by name: absent is null.
// Tests: tests/e2e/wrong_input_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_FIELD_TYPES_H_
#define FSDP_TRAIN_TRAINER_RECIPE_FIELD_TYPES_H_

#include "models/field.h"
#include "trainer/recipe/types.h"

namespace fsdp::recipe {

// The type of the entry named like the field. A map that names its first member replaces the map
// before it; otherwise members that it does not name stay.
Type<FieldValues> EntryType(const Field& field);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_FIELD_TYPES_H_
