// A checkpoint, of a run of one step.
#ifndef FSDP_TRAIN_TESTS_TESTING_SAVED_CHECKPOINT_H_
#define FSDP_TRAIN_TESTS_TESTING_SAVED_CHECKPOINT_H_

#include <string>
#include <vector>

namespace fsdp::testing {

// Writes a llama's checkpoint by two ranks and returns its directory. The root has no parameter,
// two parameters have slices, and every parameter lies in two files, or in either. `name`: the
// run's directory, in the test's; `more`: overrides of its recipe.
std::string SavedCheckpoint(const std::string& name, const std::vector<std::string>& more = {});

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_SAVED_CHECKPOINT_H_
