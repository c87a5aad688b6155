// Ranks with a GPU each, over NCCL 2.28 or newer.
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/comm/store.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class NcclLibrary;  // nccl_api.h

// Looks for NCCL, where it can be had. Null where the program was built without CUDA. Throws
// DeviceError that says what is wrong and where it was looked for.
[[gnu::weak]] std::shared_ptr<const NcclLibrary> FindNccl();
[[gnu::weak]] std::string VersionText(const NcclLibrary& nccl);  // "2.28.9".

// Memory of the GPU that a communicator takes for itself, however large the tensors are; NCCL takes
// more, as it sees fit.
inline constexpr int64_t kNcclStagingBytes = 32 << 20;

struct NcclOptions {
  CommOptions comm = {};
  // Sums of the CPU's transports, bit for bit: an all-to-all of slices, piece by piece, and one sum
  // in fp32, in rank order, rounded once. Without it NCCL sums, in an order of its own, and rounds
  // on the way to the dtype on the wire; but a sum that is to leave in fp32 what travels in bf16 or
  // fp16 is always made like this: NCCL cannot.
  bool deterministic = false;
  int64_t staging_bytes = kNcclStagingBytes;
};

// All ranks of the group call this, with a `name` that the job uses once; blocks until all are
// connected. `device`, of CUDA, outlives it; each rank has a GPU of its own. It is for tensors in
// the GPU's memory.
//   Host      Calls return at once, but the first of a kind and size: for these NCCL makes
//             connections, and waits for the peers. So ranks make the calls of all their
//             communicators in one order.
//   Streams   A call on another stream than the last one waits for that.
//   Timeout   Counts from when a call begins on the GPU. Its CommError says where the others are.
//   Failure   A thread looks every few ms whether NCCL knows of an error. It, a timeout or Abort()
//             fails the streams of what is in flight, then ends it on the GPU, and the others hear
//             of it through the store. So do they when a rank leaves.
//   Traffic   What goes over networks is NCCL's affair, and not counted.
// Throws CommError, DeviceError and MemoryError; what fails on one rank, but for want of memory,
// all throw.
[[gnu::weak]] std::unique_ptr<Communicator> CreateNcclCommunicator(
    std::shared_ptr<const NcclLibrary> nccl, Device& device, Store& store, const std::string& name,
    const RankGroup& group, const NcclOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COMMUNICATOR_H_
