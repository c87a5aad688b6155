// The way from a stream to bytes that all CPU transports share.
// Tests: tests/trainer/comm/thread_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_CPU_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_CPU_COMMUNICATOR_H_

#include <memory>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"

namespace fsdp {

// How bytes move. It outlives its Communicator while streams still hold work of it.
class Transport {
 public:
  virtual ~Transport() = default;
  // On a stream's worker: blocks until the collective is done. Throws CommError. One at a time.
  virtual void Run(const CollectiveCall& call) = 0;
  virtual void Abort(const std::string& why) = 0;  // From any thread.
  virtual void Leave() = 0;                        // An Abort() that says that this rank has left.
};

// A communicator for the host's memory: the CPU device's, and pinned memory on a stream of CUDA.
std::unique_ptr<Communicator> MakeCpuCommunicator(const RankGroup& group,
                                                  std::shared_ptr<Transport> transport);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_CPU_COMMUNICATOR_H_
