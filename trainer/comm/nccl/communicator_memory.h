// The memory of a GPU that a communicator over NCCL takes, for plans. NCCL's numbers are those of
// version 2.28's source; environment variables change them.
// Tests: tests/trainer/comm/communicator_memory_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_COMMUNICATOR_MEMORY_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_COMMUNICATOR_MEMORY_H_

#include <cstdint>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/nccl/nccl_communicator.h"

namespace fsdp {

// `calls`: those that it will be told by Communicator::Try().

// Bytes that it takes for certain: the staging memory, where sums are its own.
int64_t NcclStaging(const NcclOptions& options, const std::vector<Communicator::Size>& calls);

// Bytes of the buffers that NCCL makes as it connects a group of `ranks`, `here` of them on a
// rank's host: an estimate, for machines that are not here. A run measures it.
int64_t NcclBuffers(const NcclOptions& options, const std::vector<Communicator::Size>& calls,
                    int ranks, int here);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_COMMUNICATOR_MEMORY_H_
