// Collectives of one rank of a job that does not exist: what they cost, on a simulated device.
// Tests: tests/trainer/comm/communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_SIM_SIM_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_SIM_SIM_COMMUNICATOR_H_

#include <memory>
#include <mutex>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"

namespace fsdp {

// Streams of SimDevice only. Every call is charged at its Cost; it never fails by itself.
class SimCommunicator final : public Communicator {
 public:
  SimCommunicator(int rank, int size) : Communicator(rank, size, DeviceType::kSim) {}

  // A simulated stream cannot fail: the next call throws CommError instead.
  void Abort(const std::string& why) override;

 private:
  void Enqueue(Stream& stream, Operation operation, const CollectiveCall& call) override;

  std::mutex mutex_;
  std::string aborted_;  // Guarded by mutex_.
};

// For MeshCommunicators.
std::unique_ptr<Communicator> ConnectSim(const std::string& name, const RankGroup& group);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_SIM_SIM_COMMUNICATOR_H_
