// How much of a grid of cases a test runs.
#ifndef FSDP_TRAIN_TESTS_TESTING_EVERYTHING_H_
#define FSDP_TRAIN_TESTS_TESTING_EVERYTHING_H_

#include <cstdlib>

namespace fsdp::testing {

// Whether a test runs all cases, for tools/test --everything and tools/mutations, or only those of
// every change.
inline bool Everything() { return std::getenv("FSDP_TRAIN_TEST_EVERYTHING") != nullptr; }

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_EVERYTHING_H_
