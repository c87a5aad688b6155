// Ranks with a GPU each, over NCCL 2.28 or newer. A GPU does not notice that a peer has gone, so a
// thread beside it watches. NCCL does not compare calls, so ranks that disagree hang; a timeout
// asks all ranks for their last calls, and names both sides.
// Tests: tests/trainer/comm/nccl_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COMMUNICATOR_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/comm/store/store.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class NcclLibrary;  // nccl_link.h

// Looks for NCCL, where it can be had. Null where the program was built without CUDA. Throws
// DeviceError that says what is wrong and where it was looked for.
[[gnu::weak]] std::shared_ptr<const NcclLibrary> FindNccl();
[[gnu::weak]] std::string VersionText(const NcclLibrary& nccl);  // "2.28.9".
[[gnu::weak]] int VersionOf(const NcclLibrary& nccl);            // 22809.

// Memory of the GPU that a communicator takes for itself, however large the tensors are, if sums
// are its own (NcclOptions).
inline constexpr int64_t kNcclStagingBytes = 32 << 20;
// Up to here every rank sums everything in a deterministic all-reduce: one all-gather is less than
// two rounds.
inline constexpr int64_t kNcclWholeBytes = 64 << 10;

// Ranks that may share a GPU: two where the environment has NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL
// is of kSharedGpuVersion or newer (NCCL 2.30.3, environment variables: experimental), otherwise
// one.
inline constexpr int kSharedGpuVersion = 23003;
inline int MostRanksOfAGpu() {
  const char* const enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return enabled != nullptr && std::atoi(enabled) == 1 ? 2 : 1;
}

struct NcclOptions {
  CommOptions comm = {};
  // True: sums are those of the CPU's transports, bit for bit: an all-to-all of slices, piece by
  // piece, and one sum in fp32, in rank order, rounded once. False: NCCL sums, in an order of its
  // own, and rounds on the way to the dtype on the wire.
  bool deterministic = false;
  // Reduce-scatters that leave in fp32 what travels in bf16 or fp16 are made as with
  // `deterministic`. False: NCCL sums them, too, over `full`, and the sum is widened; what travels
  // in fp16 is divided by the largest power of two that is at most the ranks before, and multiplied
  // behind: the sum overflows where the mean does.
  bool exact_into_fp32 = false;
  int64_t staging_bytes = kNcclStagingBytes;
  // Multiprocessors that a collective takes at most (ncclConfig_t::maxCTAs). 0: NCCL decides.
  int max_blocks = 0;
  // How long an abort may take, and before it, half as long, a finish (nccl_link.h).
  double end_patience_s = 10;
};

// Whether ranks send each other slices of a call and add them up in the staging memory: NCCL does
// not. `result` is the dtype that a reduce-scatter leaves.
inline bool SumsHere(const NcclOptions& options, Collective kind, DType dtype, DType result) {
  if (kind == Collective::kAllReduce) return options.deterministic;
  const bool exact = options.deterministic || (result != dtype && options.exact_into_fp32);
  return kind == Collective::kReduceScatter && exact;
}

// All ranks of the group call this, with a `name` that the job uses once; blocks until all have
// met. Try() tells which collectives come: NCCL connects for these, and allocates its buffers, and
// the communicator takes its staging memory, if it needs any. A call that was not told
// connects and allocates when it is first made. `device`, of CUDA, outlives it; each rank has a GPU
// of its own. The communicator is for tensors in the GPU's memory.
//   Host      Calls return at once, except kinds and sizes for which NCCL has an algorithm that was
//             not tried: these connect and wait for the peers. Ranks therefore make the calls of
//             all their communicators in one order.
//   Streams   A call on another stream than the last one waits for that.
//   Timeout   Counts from when a call begins on the GPU. Its CommError says where the others are.
//   Failure   A thread looks every few ms whether NCCL knows of an error. It, a timeout or Abort()
//             fails the streams of what is in flight, then ends it on the GPU, and the others hear
//             of it through the store. So do they when a rank leaves: what it had done ends, or
//             fails a few seconds after it has begun.
//   End       A communicator without a failure, and with nothing in flight, is finalized and
//             destroyed as NCCL wants it; any other aborted.
//   Traffic   Bytes over networks are NCCL's affair, and not counted.
// Throws CommError, DeviceError and MemoryError; what fails on one rank, but for want of memory,
// all throw.
[[gnu::weak]] std::unique_ptr<Communicator> CreateNcclCommunicator(
    std::shared_ptr<const NcclLibrary> nccl, Device& device, Store& store, const std::string& name,
    const RankGroup& group, const NcclOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COMMUNICATOR_H_
