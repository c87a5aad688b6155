// A checkpoint, of a run of one step.
#ifndef FSDP_TRAIN_TESTS_TESTING_SAVED_CHECKPOINT_H_
#define FSDP_TRAIN_TESTS_TESTING_SAVED_CHECKPOINT_H_

#include <string>
#include <vector>

namespace fsdp::testing {

// Its directory. A llama's: its root has no parameter, and two of its parameters have slices. Of
// two ranks: every parameter lies in two files, or in either. The run's directory is `name`, in the
// test's; `more` are overrides of its recipe.
std::string SavedCheckpoint(const std::string& name, const std::vector<std::string>& more = {});

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_SAVED_CHECKPOINT_H_
