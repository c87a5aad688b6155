// Collectives of one rank of a job that does not exist: what they cost, on a simulated device.
// Tests: tests/trainer/comm/communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_SIM_SIM_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_SIM_SIM_COMMUNICATOR_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/runtime/operation.h"
#include "trainer/runtime/sim/timeline.h"

namespace fsdp {

// The time of a call between these ranks of the job. Links may differ by where the ranks are. Time
// alone is charged: bytes are counted as ever.
using SimCharge = std::function<SimWork(const Stream& stream, const RankGroup& group,
                                        const CollectiveCall& call)>;

// Streams of SimDevice only. Without a charge a call takes what its Cost is worth on the device:
// that of a ring whose links are all alike. It never fails by itself.
class SimCommunicator final : public Communicator {
 public:
  explicit SimCommunicator(const RankGroup& group, SimCharge charge = nullptr)
      : Communicator(group, DeviceType::kSim), charge_(std::move(charge)) {}

  // A simulated stream cannot fail: the next call throws CommError instead.
  void Abort(const std::string& why) override;

 private:
  void Enqueue(Stream& stream, Operation operation, const CollectiveCall& call) override;

  const SimCharge charge_;
  std::mutex mutex_;
  std::string aborted_;  // Guarded by mutex_.
};

// For MeshCommunicators.
std::unique_ptr<Communicator> ConnectSim(const std::string& name, const RankGroup& group);
// ConnectSim() for calls that take the time that `charge` says.
std::function<std::unique_ptr<Communicator>(const std::string& name, const RankGroup& group)>
ConnectSimAt(SimCharge charge);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_SIM_SIM_COMMUNICATOR_H_
