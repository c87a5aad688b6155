// A rank's watch over other hosts, beside its collectives. Leaders exchange their next call,
// failures and late ranks; each rank's watcher acts on them.
// Tests: tests/trainer/comm/hosts_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_WATCH_H_
#define FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_WATCH_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/hosts/host_links.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/patience.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/shm/shared_memory.h"
#include "trainer/comm/tcp/tcp_mesh.h"

namespace fsdp {

// A rank's means to reach the others.
struct Wiring {
  LocalMemory local;  // This host's.
  std::unique_ptr<TcpMesh> mesh;
  std::unique_ptr<HostLinks> links;    // A leader's; other ranks' has no links.
  std::vector<std::string> addresses;  // By host.
};

// The most calls that any rank of the host has completed. All its ranks have then received what
// they wait for in those calls, and sent what they owe. Lies in memory that they share.
using Completed = std::atomic<uint64_t>;

// The next call of a host's ranks: its leader's, and that of the first rank which is about to make
// another one.
struct HostCall {
  CollectiveCall first;
  int odd_rank = -1;
  CollectiveCall odd;
};

// Everything that can end a wait of this rank goes through `member`, the gate of its host. A thread
// of its own watches; one other calls.
class HostWatch {
 public:
  // References are kept.
  HostWatch(const Wiring& wiring, const HostPlacement& placement, int rank, Member& member,
            const Completed& completed, double timeout_s);
  ~HostWatch();

  void Wake() { wiring_.links->Wake(); }  // There is something to see. Any thread.

  void TellCall(const HostCall& call);  // A leader tells all hosts.
  // For a leader: blocks until all hosts have told their calls. Returns them by host. Throws
  // CommError("aborted").
  std::vector<HostCall> AwaitCalls(const CollectiveCall& call);

  // From here on this rank waits for data of `peer`, or for nothing.
  void Expect(const CollectiveCall& call, int peer);
  void ExpectNothing();

  // The reason that counts where `error` has ended this rank's call: the group's. It may still be
  // on its way, because both ends notice a connection that ends.
  std::string ReasonFor(const std::string& error, const CollectiveCall& call);

 private:
  using Clock = std::chrono::steady_clock;
  // Between leaders.
  enum Frame : uint32_t { kCall, kAbort, kAsk, kAnswer };
  struct Expectation {
    CollectiveCall call;
    int peer;  // The sender waited for; -1: all hosts' calls.
    Patience patience;
    std::optional<Clock::time_point> asked;  // Hosts that are late have been asked who it is.
  };

  void SetExpectation(const CollectiveCall& call, int peer);  // mutex_ is held.
  std::vector<int> MissingHosts() const;                      // mutex_ is held.
  std::string Where(int host) const { return "host " + wiring_.addresses[host]; }
  void Watch();
  void OnMessage(int host, Frame type, const std::string& text);
  void LostHost(int host);
  void Check();
  void CheckTime();

  const Wiring& wiring_;
  const HostPlacement& placement_;
  const int host_, index_;
  const bool leads_;
  Member& member_;
  const Completed& completed_;
  const double timeout_s_;
  std::atomic<bool> stop_{false};

  std::mutex mutex_;  // Guards the five below.
  std::condition_variable changed_;
  bool told_ = false;  // The abort has reached peers and whoever waits here.
  std::vector<std::deque<HostCall>> inbox_;
  std::optional<Expectation> expectation_;
  std::vector<std::optional<std::string>> answers_;  // By host: who is late there.

  // Watch()'s own.
  std::set<int> left_;  // Hosts whose links may end.
  std::vector<std::pair<uint64_t, std::string>> deferred_;
  std::thread watcher_;  // Last: it uses the above.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_WATCH_H_
