// Settings of parameters, chosen by name.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_PARAMETER_GROUPS_H_
#define FSDP_TRAIN_TRAINER_OPTIM_PARAMETER_GROUPS_H_

#include <optional>
#include <string>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/optim/kind.h"

namespace fsdp {

class Model;

struct ParameterGroup {
  // A glob over the names of slices, as in the Hugging Face file: `*` stands for any run of
  // characters, `?` for one, `[...]` for one of a set.
  std::string match;
  std::optional<double> weight_decay;  // For all that match, biases and norms included.
  double lr_scale = 1;                 // Multiplies the learning rate.
  bool frozen = false;                 // Not trained: no gradient, no optimizer state.
  std::optional<GroupRule> rule = {};  // Instead of the optimizer's.
  // The dtype of optimizer state (DTypes::state); empty: the run's.
  std::optional<DType> state_dtype = std::nullopt;
};

// The first group that matches, null where none does.
const ParameterGroup* GroupOf(const std::vector<ParameterGroup>& groups, const std::string& name);

// An error in a group. `group`: its index, or -1 for all of them together.
struct GroupMistake {
  int group = -1;
  std::string message;
};

// Freezes the parameters whose group says so. Returns the mistakes; after one the model is not to
// be used. Mistakes: a group that matches no parameter, or none that an earlier one has left; a
// parameter with frozen slices and others, or with slices of different state_dtype; nothing left to
// train.
std::vector<GroupMistake> FreezeParameters(Model& model, const std::vector<ParameterGroup>& groups);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_PARAMETER_GROUPS_H_
