// Settings of parameters by their names.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_PARAMETER_GROUPS_H_
#define FSDP_TRAIN_TRAINER_OPTIM_PARAMETER_GROUPS_H_

#include <optional>
#include <string>
#include <vector>

#include "trainer/nn/model.h"

namespace fsdp {

struct ParameterGroup {
  // A glob over the names of slices (those of the Hugging Face file): `*` stands for any run of
  // characters, `?` for one, `[...]` for one of a set.
  std::string match;
  std::optional<double> weight_decay;  // Of all that match, biases and norms included.
  double lr_scale = 1;                 // Multiplies the learning rate.
  bool frozen = false;                 // Not trained: no gradient, no optimizer state.
};

// The first group that matches, null where none does.
const ParameterGroup* GroupOf(const std::vector<ParameterGroup>& groups, const std::string& name);

// What is wrong with a group; `group` is its index, -1 for all of them together.
struct GroupMistake {
  int group = -1;
  std::string message;
};

// Freezes the parameters whose group says so. Returns what is wrong, in which case the model is not
// to be used: a group that matches no parameter, or none that an earlier one has left; a parameter
// of which some slices are frozen and others not; nothing left to train.
std::vector<GroupMistake> FreezeParameters(Model& model, const std::vector<ParameterGroup>& groups);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_PARAMETER_GROUPS_H_
