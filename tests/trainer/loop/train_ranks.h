// A job of several ranks, each a process under the stream checker, of one recipe.
#ifndef FSDP_TRAIN_TESTS_TRAINER_LOOP_TRAIN_RANKS_H_
#define FSDP_TRAIN_TESTS_TRAINER_LOOP_TRAIN_RANKS_H_

#include <string>
#include <vector>

namespace fsdp {
struct Recipe;
}  // namespace fsdp

namespace fsdp::testing {

// The exit code of each rank and its message; "0 " if it is done. `said`: rank 0's console.
std::vector<std::string> TrainRanks(int world, const Recipe& recipe, std::string* said = nullptr);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_LOOP_TRAIN_RANKS_H_
