#include "trainer/comm/sim/sim_communicator.h"

#include <utility>

#include "trainer/comm/traffic.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {

void SimCommunicator::Abort(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (aborted_.empty()) aborted_ = "rank " + std::to_string(rank()) + " aborted: " + why;
}

void SimCommunicator::Enqueue(Stream& stream, Operation operation, const CollectiveCall& call) {
  {
    std::lock_guard lock(mutex_);
    if (!aborted_.empty()) throw CommError(aborted_);
  }
  CountTaken(call, BytesTaken(call, rank(), size()));
  if (charge_) static_cast<SimDevice&>(stream.device()).PriceNext(charge_(stream, group(), call));
  stream.Enqueue(std::move(operation));
}

std::unique_ptr<Communicator> ConnectSim(const std::string&, const RankGroup& group) {
  return std::make_unique<SimCommunicator>(group);
}

std::function<std::unique_ptr<Communicator>(const std::string&, const RankGroup&)> ConnectSimAt(
    SimCharge charge) {
  return [charge = std::move(charge)](const std::string&, const RankGroup& group) {
    return std::make_unique<SimCommunicator>(group, charge);
  };
}

}  // namespace fsdp
