// A profiler's view of a thread: the ranges that it names, in the order of their ends, and the
// calls that it has enqueued in each.
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

// Starts a recording, or starts it anew.
void ProfileEmulatedRanges();
// Ends the recording.
std::vector<EmulatedRange> TakeEmulatedRanges();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_PROFILER_H_
