// How much of a grid of cases a test runs.
//
// A grid that is too long for every change is cut into parts. A run takes one part, which follows
// from the commit, so that a few commits run all of them. tools/test prints the number and takes
// another with --part.
#ifndef FSDP_TRAIN_TESTS_TESTING_EVERYTHING_H_
#define FSDP_TRAIN_TESTS_TESTING_EVERYTHING_H_

#include <cstddef>
#include <cstdlib>
#include <fstream>

namespace fsdp::testing {

// Whether a test runs all cases: for tools/test --everything and for tools/mutations.
inline bool Everything() { return std::getenv("FSDP_TRAIN_TEST_EVERYTHING") != nullptr; }

// Whether a grid whose cases have names has all of them: also where Bazel's --test_filter chooses,
// so that a case that has failed is there at any commit.
inline bool AllCases() { return Everything() || std::getenv("TESTBRIDGE_TEST_ONLY") != nullptr; }

// The part that this run takes of `n`, in [0, n). `n` divides 180.
inline size_t Part(size_t n) {
  size_t part = 0;  // Where no file says another: without a commit.
  std::ifstream("tests/testing/part.txt") >> part;
  return part % n;
}

// Whether case `i` of a grid that is cut into `n` parts is left to another part.
inline bool OfAnotherPart(size_t i, size_t n) { return !AllCases() && i % n != Part(n); }

// Where each call of a work is failed, or the work killed there: the first call that a run takes,
// and from one to the next.
inline int CallsApart() { return AllCases() ? 1 : 3; }
inline int FirstCall() { return static_cast<int>(Part(static_cast<size_t>(CallsApart()))); }

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_EVERYTHING_H_
