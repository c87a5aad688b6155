#include "trainer/comm/cpu_communicator.h"

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Which call may run: 2 s before call s, 2 s + 1 during it. Catches calls that race or overtake one
// another because their streams are not ordered; a transport would take one for the other.
class Turn {
 public:
  Turn(std::atomic<uint64_t>& turn, const CollectiveCall& call) : turn_(turn), call_(call) {
    uint64_t expected = 2 * call.sequence;
    if (turn_.compare_exchange_strong(expected, 2 * call.sequence + 1)) return;
    throw std::logic_error("[" + std::string(Name(call.kind)) + "] call #" +
                           std::to_string(call.sequence) + " runs while #" +
                           std::to_string(expected / 2) +
                           " has not: calls of one communicator go to one stream, or to streams "
                           "that events order");
  }
  ~Turn() { turn_.store(2 * call_.sequence + 2); }

 private:
  std::atomic<uint64_t>& turn_;
  const CollectiveCall& call_;
};

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(const RankGroup& group, std::shared_ptr<Transport> transport)
      : Communicator(group, DeviceType::kCpu),
        name_(group.NameOf(group.rank())),
        shared_(std::make_shared<Shared>()) {
    shared_->transport = std::move(transport);
  }
  ~CpuCommunicator() override { shared_->transport->Leave(); }

  void Abort(const std::string& why) override {
    shared_->transport->Abort("rank " + std::to_string(name_) + " aborted: " + why);
  }

 private:
  struct Shared {
    std::shared_ptr<Transport> transport;
    std::atomic<uint64_t> turn{0};
  };

  void Enqueue(Stream& stream, Operation operation, const CollectiveCall& call) override {
    const auto run = [shared = shared_](ThreadPool&, const CollectiveCall& host) {
      const Turn turn(shared->turn, host);
      shared->transport->Run(host);
    };
    operation.kernels.host = OnCpu(run, call);
    stream.Enqueue(std::move(operation));
  }

  const int name_;  // In the world.
  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<Communicator> MakeCpuCommunicator(const RankGroup& group,
                                                  std::shared_ptr<Transport> transport) {
  return std::make_unique<CpuCommunicator>(group, std::move(transport));
}

}  // namespace fsdp
