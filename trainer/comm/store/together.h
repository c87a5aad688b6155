// How all ranks end alike: work that all must have done, an error that one rank reports, and a stop
// before the first step.
// Tests: tests/trainer/comm/together_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_TOGETHER_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_TOGETHER_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/comm/store/store.h"
#include "trainer/core/errors.h"

namespace fsdp {

// A job that is told to stop before its first step has nothing to save: it ends at once, on all
// ranks alike, whichever of them hears of it first. The others find the reason in a message of the
// store.
struct EarlyStop : Error {
  static constexpr const char* kReason = "stopped by a signal before the first step";
  EarlyStop() : Error(ExitCode::kStopped, kReason) {}

  static bool Is(std::string_view message) { return message.find(kReason) != message.npos; }
};

// Ends a rank with the exit code of an error that another rank reports: not to be printed.
struct ReportedElsewhere : Error {
  explicit ReportedElsewhere(const Error& error) : Error(error.code(), error.what()) {}
};

// Every rank that is about to end with an error calls this, once for a `name`. True where this rank
// is the first of those whose messages differ in numbers alone (free memory, a port): it reports
// the error for all of them. Ranks that end with ReportedElsewhere do not count. Waits a few
// seconds at most for ranks that may have no error.
bool ClaimReport(Store& store, const std::string& name, int rank, int size, const Error& error);

// Does `work` on this rank and waits until all `size` have done theirs. Returns the results by
// rank. Where any failed, all throw the first one's reason, "rank 2: ...". That rank throws an
// Error with its exit code (a CheckpointError if it was one), the others ReportedElsewhere. No rank
// throws before all have heard of it, because a rank that throws may end the job, and the store
// with it. Other exceptions count as kRuntime. A CommError of `work` is thrown at once: the others
// hear it from the store. `name` as in store.h.
std::vector<std::string> Together(Store& store, const std::string& name, int rank, int size,
                                  const std::function<std::string()>& work);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_TOGETHER_H_
