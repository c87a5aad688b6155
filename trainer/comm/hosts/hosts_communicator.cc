#include "trainer/comm/hosts/hosts_communicator.h"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/comm/gloo/gloo_mesh.h"
#include "trainer/comm/hosts/host_links.h"
#include "trainer/comm/hosts/hosts_transport.h"
#include "trainer/comm/shm/handshake.h"
#include "trainer/comm/store/socket.h"
#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"

namespace fsdp {
namespace {

// Where a leader's door is, and what to say there: the words of its card.
struct Door {
  std::string address = "-";
  int port = 0;
  std::string secret = "-";

  std::string ToString() const { return address + " " + std::to_string(port) + " " + secret; }
  static Door Parse(const std::string& words) {
    Door door;
    std::istringstream(words) >> door.address >> door.port >> door.secret;
    return door;
  }
};

std::string Secret() {
  std::random_device random;
  std::ostringstream out;
  out << std::hex;
  for (int i = 0; i < 4; ++i) out << random() << '.';
  return out.str();
}

// Calls `on_failure` when the job fails while this lives.
class FailureWatch {
 public:
  FailureWatch(Store& store, std::function<void()> on_failure)
      : thread_(StartThread("the thread that hears of failures",
                            [this, &store, on_failure = std::move(on_failure)] {
                              std::unique_lock lock(mutex_);
                              while (!over_.wait_for(lock, std::chrono::milliseconds(50),
                                                     [this] { return done_; })) {
                                if (!store.FailureReason().empty()) return on_failure();
                              }
                            })) {}
  ~FailureWatch() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace

int64_t HostsBytes(const HostPlacement& placement, int ranks) {
  return HostsTransport::Bytes(ranks, placement.MostServed(), placement.LargestHost());
}

int64_t HostsBytesPerRank(int world, int local_world) {
  const int hosts = (world + local_world - 1) / local_world;
  return HostsTransport::Bytes(local_world, hosts - 1, local_world) / local_world;
}

std::unique_ptr<Communicator> CreateHostsCommunicator(Store& store, const std::string& name,
                                                      const RankGroup& group,
                                                      const HostPlacement& world,
                                                      const std::string& address,
                                                      const CommOptions& options) {
  const HostPlacement placement = world.Among(group.ranks());
  const int rank = group.rank(), size = group.size();
  const int host = placement.HostOf(rank), leader = placement.LeaderOf(host);
  const std::vector<int>& locals = placement.RanksOf(host);
  if (locals.size() > Gate::kMaxSize) {
    throw std::invalid_argument("[CreateHostsCommunicator] " + std::to_string(locals.size()) +
                                " ranks of one host, want at most " +
                                std::to_string(Gate::kMaxSize));
  }
  const int64_t bytes = HostsBytes(placement, static_cast<int>(locals.size()));
  const std::vector<int> peers = placement.Peers(rank);
  const std::string key = "hosts_communicator/" + name + "/", what = "[hosts] " + name;
  const auto mesh_key = [&](int r) { return key + "mesh/" + std::to_string(r); };

  Wiring wiring;
  UniqueFd made;
  Socket listening;
  Card mine = MyCard();
  Door door;
  mine.error = ErrorOf([&] {
    wiring.mesh = std::make_unique<GlooMesh>(rank, size, peers, address, options.timeout_s);
    std::string addresses;
    for (const int peer : peers) {
      addresses += std::to_string(peer) + " " + wiring.mesh->AddressFor(peer) + "\n";
    }
    store.Set(mesh_key(rank), addresses);
    door.address = address;
    if (rank != leader) return;
    made = MakeSharedMemory(bytes);
    mine.fd = made.get();
    listening = Listen(address, 0);
    door.port = PortOf(listening);
    if (rank == 0) door.secret = Secret();
  });
  mine.words = door.ToString();
  const std::vector<Card> cards = ExchangeCards(store, key + "cards", what, group, mine);

  Card ready;
  ready.error = ErrorOf([&] {
    std::vector<HostDoor> doors;
    for (int other = 0; other < placement.hosts(); ++other) {
      const Door theirs = Door::Parse(cards[placement.LeaderOf(other)].words);
      doors.push_back({theirs.address, theirs.port});
      wiring.addresses.push_back(theirs.address);
    }
    wiring.local = ReachMemory(group, locals, cards, made, bytes);
    if (rank == leader) {
      const std::string secret = Door::Parse(cards[0].words).secret;
      wiring.links = std::make_unique<HostLinks>(
          host, ConnectHosts(store, host, listening, doors, secret, options.timeout_s));
    } else {
      wiring.links = std::make_unique<HostLinks>();
    }
    const FailureWatch watch(store, [&] { wiring.mesh->Abort(); });
    for (const int peer : peers) {
      std::istringstream lines(store.Get(mesh_key(peer)));
      int whom;
      std::string where;
      while (lines >> whom >> where && whom != rank) {
      }
      wiring.mesh->Connect(peer, where);
    }
  });
  ExchangeCards(store, key + "ready", what, group, ready);
  return MakeCpuCommunicator(
      group, std::make_shared<HostsTransport>(std::move(wiring), placement, rank, options));
}

}  // namespace fsdp
