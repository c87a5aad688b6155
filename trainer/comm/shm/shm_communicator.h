// Ranks that are processes of one host, over memory that they share.
// Tests: tests/trainer/comm/shm_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_SHM_SHM_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_SHM_SHM_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/comm/store/store.h"

namespace fsdp {

// Bytes of shared memory of a group, all ranks together, however large the tensors are: each rank
// stages pieces in two buffers of kShmStagingBytes in turn.
//   page-rounded control block + size * 2 * kShmStagingBytes
int64_t ShmBytes(int size);
inline constexpr int64_t kShmStagingBytes = 512 << 10;

// All ranks of the group call this, with a `name` that the job uses once; blocks until all have.
// Memory of the host only. Its first rank makes the memory (an anonymous memfd, not limited by
// the size of /dev/shm, gone with the last process that maps it, however that ends); the others
// open it through /proc, so all ranks must be of one host, one user and one PID namespace.
//   Death   A waiting rank looks every 100 ms whether a peer has ended (a zombie has), so a killed
//           process fails the others' collectives with CommError at once, not after timeout_s.
//   Errors  CommError: a rank is missing, or on another host. DeviceError, on every rank: the
//           memory cannot be had (it is all committed here, not when first touched).
std::unique_ptr<Communicator> CreateShmCommunicator(Store& store, const std::string& name,
                                                    const RankGroup& group,
                                                    const CommOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_SHM_SHM_COMMUNICATOR_H_
