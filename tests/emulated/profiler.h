// What a profiler would see of a thread: the ranges that it names, in the order of their ends, and
// what it has enqueued in each.
#ifndef FSDP_TRAIN_TESTS_EMULATED_PROFILER_H_
#define FSDP_TRAIN_TESTS_EMULATED_PROFILER_H_

#include <string>
#include <vector>

#include "tests/emulated/cudart.h"

namespace fsdp {

struct EmulatedRange {
  std::string name;
  EmulatedLaunches launches;
};

// From now on; anew where it is going on.
void ProfileEmulatedRanges();
// Ends it.
std::vector<EmulatedRange> TakeEmulatedRanges();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_PROFILER_H_
