// Ranks that are threads of one process: each reads its peers' tensors where they lie.
// Tests: tests/trainer/comm/thread_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_THREAD_THREAD_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_THREAD_THREAD_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "trainer/comm/communicator.h"

namespace fsdp {

// Element r is for rank r. Up to 1023 ranks. Memory of the host only.
std::vector<std::unique_ptr<Communicator>> CreateThreadCommunicators(
    int size, const CommOptions& options = {});
// Connects these ranks of a world, element i for the i-th: see RankGroup.
std::vector<std::unique_ptr<Communicator>> CreateThreadCommunicators(
    const std::vector<int>& ranks, const CommOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_THREAD_THREAD_COMMUNICATOR_H_
