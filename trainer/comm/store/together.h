// Work that all ranks must have done, or none goes on.
// Tests: tests/trainer/comm/together_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_TOGETHER_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_TOGETHER_H_

#include <functional>
#include <string>
#include <vector>

#include "trainer/comm/store/store.h"

namespace fsdp {

// Does `work` on this rank and waits until all `size` have done theirs. Returns the results by
// rank. Where any failed, all throw the first one's reason, "rank 2: ...": that rank as an Error
// with its exit code (a CheckpointError where that is what it was), the others as
// ReportedElsewhere; and none throws before all have heard of it, because a rank that throws may
// end the job, and the store with it. Other exceptions count as kRuntime. A CommError of `work` is
// thrown at once: the others hear it from the store. `name` as in store.h.
std::vector<std::string> Together(Store& store, const std::string& name, int rank, int size,
                                  const std::function<std::string()>& work);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_TOGETHER_H_
