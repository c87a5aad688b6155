// Which of a program's tests main.cc runs.
#ifndef FSDP_TRAIN_TESTS_TESTING_CHOSEN_TESTS_H_
#define FSDP_TRAIN_TESTS_TESTING_CHOSEN_TESTS_H_

#include <set>
#include <string>

namespace fsdp::testing {

// Sources, as "linear_test", all tests of which are run by this process: where a filter or a shard
// leaves a test out, its source is not among them. For use once tests run.
std::set<std::string> WholeSources();

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_CHOSEN_TESTS_H_
