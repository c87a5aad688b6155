// Collectives over memory of a GPU by a transport of the CPU's memory: pieces are copied to pinned
// memory, collected there by work of the host in the stream's order, and copied back.
#ifndef FSDP_TRAIN_TRAINER_COMM_PINNED_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_PINNED_COMMUNICATOR_H_

#include <cstdint>
#include <memory>

#include "trainer/comm/communicator.h"

namespace fsdp {

// Pinned memory of a communicator, however large the tensors are.
inline constexpr int64_t kPinnedStagingBytes = 8 << 20;

// `over`: a communicator for CPU memory, by any transport. Its bits, its errors and its counts of
// bytes are also those of the result. A call larger than the staging memory is several calls of
// `over`, the same on all ranks, and the number of a call in a message counts those. `device`, of
// CUDA, outlives the result; all ranks give as many `staging_bytes`.
//   End  The destructor waits for the copies of what it has aborted, one second at most: while they
//        still go on, it leaves them their memory.
// Throws MemoryError.
std::unique_ptr<Communicator> MakePinnedCommunicator(std::unique_ptr<Communicator> over,
                                                     Device& device,
                                                     int64_t staging_bytes = kPinnedStagingBytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_PINNED_COMMUNICATOR_H_
