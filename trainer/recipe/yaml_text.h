// Values as one line of YAML.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_YAML_TEXT_H_
#define FSDP_TRAIN_TRAINER_RECIPE_YAML_TEXT_H_

#include <string>

#include "trainer/recipe/types.h"

namespace fsdp::recipe {

// ParseYaml reads the same value back; lists and maps are in brackets.
std::string YamlValue(const Json& value);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_YAML_TEXT_H_
