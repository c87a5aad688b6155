// A --set that goes into a list: data.train[0].weight=3.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_SET_ITEM_H_
#define FSDP_TRAIN_TRAINER_RECIPE_SET_ITEM_H_

#include <memory>
#include <string>
#include <vector>

#include "trainer/recipe/yaml_tree.h"

namespace fsdp::recipe {

struct SetItem {
  std::string list;                      // The key of the list: "data.train".
  std::shared_ptr<const YamlNode> node;  // The list with `value` in its place. Null: a mistake.
  std::string mistake;
};

// `key` has a `[`. Items count from 0. The list is taken from the last of `trees` that has its key;
// unchanged nodes keep their places.
SetItem SetInList(const std::string& key, const Place& place,
                  const std::shared_ptr<const YamlNode>& value,
                  const std::vector<std::shared_ptr<const YamlNode>>& trees);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_SET_ITEM_H_
