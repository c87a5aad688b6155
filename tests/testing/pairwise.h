// Test cases out of settings with few values each: not every combination, but every pair of values
// of every two settings at least once (Cohen, Dalal, Fredman and Patton 1997, "The AETG System",
// section 3: greedy). Faults that need three settings to meet are left to chosen full products.
#ifndef FSDP_TRAIN_TESTS_TESTING_PAIRWISE_H_
#define FSDP_TRAIN_TESTS_TESTING_PAIRWISE_H_

#include <cstdint>
#include <vector>

namespace fsdp::testing {

// levels[i] is the number of values of setting i. Each row holds an index for each setting. A
// function of its arguments alone.
std::vector<std::vector<int>> CoverPairs(const std::vector<int>& levels, uint64_t seed);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_PAIRWISE_H_
