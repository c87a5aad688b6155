#include "trainer/comm/hosts/hosts_communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/hosts/host_links.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/hosts/host_watch.h"
#include "trainer/comm/reduce.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/shm/shared_memory.h"
#include "trainer/comm/shm/staged_transport.h"
#include "trainer/comm/store/socket.h"
#include "trainer/comm/tcp/tcp_door.h"
#include "trainer/comm/tcp/tcp_mesh.h"
#include "trainer/comm/traffic.h"
#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"

namespace fsdp {

// Each rank's buffer is what it stages for its own host, then what it receives from others.
class HostsTransport final : public StagedTransport {
 public:
  // Bytes of shared memory of a host with `ranks` ranks, where a rank serves at most `most_served`
  // others.
  static int64_t Bytes(int ranks, int most_served, int largest_host);

  HostsTransport(Wiring wiring, const HostPlacement& placement, int rank,
                 const CommOptions& options);
  ~HostsTransport() override;

  void Run(const CollectiveCall& call) override;
  void Abort(const std::string& why) override;
  void Leave() override;

 private:
  bool Here(int rank) const { return placement_.HostOf(rank) == host_; }
  std::byte* Arrived(int from, uint64_t round) const;
  std::byte* ArrivedFor(int from, int to, uint64_t round) const;
  void Send(const CollectiveCall& call, int to, const std::byte* data, int64_t bytes);
  void Receive(const CollectiveCall& call, int from, int to, std::byte* data, int64_t bytes);
  void CompareHosts(const CollectiveCall& call);

  void Begin(const CollectiveCall& call) override;
  void Settle(const CollectiveCall& call) override;
  void PostShard(const CollectiveCall& call, const std::byte* shard,
                 std::span<const Part> parts) override;
  const std::byte* ShardOf(int from, uint64_t round) const override;
  void PostSlices(const CollectiveCall& call, const std::byte* data,
                  std::span<const Part> parts) override;
  const std::byte* SliceOf(int from, uint64_t round) const override;

  const Wiring wiring_;
  const HostPlacement placement_;
  const int host_;
  const std::vector<int> locals_;  // The ranks of this host.
  const int index_;                // In locals_.
  const int64_t gather_bytes_, slice_bytes_;
  const Staging staging_;
  std::vector<int> served_;
  std::vector<int> slot_;  // By rank of another host: its place in what its partner here serves.
  Member member_;
  Completed& completed_;  // Shared.
  bool begun_ = false;    // Whether hosts have compared their calls.
  std::vector<TcpMesh::Message> messages_;
  HostWatch watch_;  // Last: its thread uses the above.
};

namespace {

constexpr int64_t kOutBytes = 512 << 10;        // That a rank stages for its own host, twice.
constexpr int64_t kLeastInBytes = 2 << 20;      // That it receives from others, twice.
constexpr int64_t kLeastSliceBytes = 16 << 10;  // In a message, however many hosts there are.
// A rank that waits for one of its own host gives those that wait for another host this much
// longer: they know who is missing.
constexpr double kPatienceS = 3;

// Completed lies behind the rendezvous.
constexpr int64_t kCompleted = sizeof(Completed);

int64_t InBytesOf(int most_served, int largest_host) {
  return std::max(kLeastInBytes, most_served * largest_host * kLeastSliceBytes);
}

uint64_t Mix(uint64_t x) {  // The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Ranks that disagree never get each other's data: their tags differ.
uint64_t Tag(const CollectiveCall& call, uint64_t round, int from, int to) {
  uint64_t tag = 0;
  for (const uint64_t word :
       {call.sequence, static_cast<uint64_t>(call.kind), static_cast<uint64_t>(call.dtype),
        static_cast<uint64_t>(call.root), static_cast<uint64_t>(call.n), call.layout_hash, round,
        static_cast<uint64_t>(from), static_cast<uint64_t>(to)}) {
    tag = Mix(tag ^ word);
  }
  return tag;
}

int64_t InBytes(const HostPlacement& placement) {
  return InBytesOf(placement.MostServed(), placement.LargestHost());
}

// A shard that is sent at once, and a slice for one rank: the same on all hosts.
int64_t GatherBytes(const HostPlacement& placement) {
  const int64_t in = InBytes(placement) / std::max(1, placement.MostServed());
  return std::min(kOutBytes, in / Staging::kLine * Staging::kLine);
}
int64_t SliceBytes(const HostPlacement& placement) {
  const int64_t in =
      InBytes(placement) / std::max(1, placement.MostServed() * placement.LargestHost());
  const int64_t out = kOutBytes / std::max(1, placement.LargestHost() - 1);
  return std::min(in, out) / Staging::kLine * Staging::kLine;
}

std::vector<int> Names(const HostPlacement& placement, const std::vector<int>& ranks) {
  std::vector<int> names;
  for (const int rank : ranks) names.push_back(placement.NameOf(rank));
  return names;
}

}  // namespace

int64_t HostsTransport::Bytes(int ranks, int most_served, int largest_host) {
  return Staging::Bytes(ranks, kOutBytes + InBytesOf(most_served, largest_host), kCompleted);
}

HostsTransport::HostsTransport(Wiring wiring, const HostPlacement& placement, int rank,
                               const CommOptions& options)
    : StagedTransport(rank, placement.size(), GatherBytes(placement), SliceBytes(placement),
                      /*ahead=*/true),
      wiring_(std::move(wiring)),
      placement_(placement),
      host_(placement.HostOf(rank)),
      locals_(placement.RanksOf(host_)),
      index_(placement.IndexOf(rank)),
      gather_bytes_(GatherBytes(placement)),
      slice_bytes_(SliceBytes(placement)),
      staging_(wiring_.local.mapping->data(), static_cast<int>(locals_.size()),
               kOutBytes + InBytes(placement), slice_bytes_, kCompleted),
      slot_(placement.size()),
      member_(wiring_.local.mapping->data(), index_, static_cast<int>(locals_.size()), options,
              /*watch=*/nullptr, Names(placement, locals_)),
      completed_(*reinterpret_cast<Completed*>(
          wiring_.local.mapping->data() + Rendezvous::Bytes(static_cast<int>(locals_.size())))),
      watch_(wiring_, placement_, rank, member_, completed_, options.timeout_s) {
  for (const int local : locals_) {
    const std::vector<int> served = placement.Served(local);
    for (size_t i = 0; i < served.size(); ++i) slot_[served[i]] = static_cast<int>(i);
    if (local == rank) served_ = served;
  }
}

HostsTransport::~HostsTransport() = default;

void HostsTransport::Run(const CollectiveCall& call) {
  try {
    StagedTransport::Run(call);
  } catch (const CommError& error) {
    messages_.clear();
    throw CommError(watch_.ReasonFor(error.what(), call));
  }
  uint64_t before = completed_;
  while (before <= call.sequence && !completed_.compare_exchange_weak(before, call.sequence + 1)) {
  }
  watch_.Wake();  // An abort may wait for this.
}

void HostsTransport::Abort(const std::string& why) {
  member_.Abort(why);
  watch_.Wake();
}

void HostsTransport::Leave() {
  member_.Leave();
  watch_.Wake();
}

// Where the shard of `from`, a rank of another host, arrives.
std::byte* HostsTransport::Arrived(int from, uint64_t round) const {
  const int partner = placement_.Partner(from, host_);
  return staging_.Buffer(placement_.IndexOf(partner), round) + kOutBytes +
         slot_[from] * gather_bytes_;
}

// ... and what it has for `to`, a rank of this one.
std::byte* HostsTransport::ArrivedFor(int from, int to, uint64_t round) const {
  const int partner = placement_.Partner(from, host_);
  const int64_t row = slot_[from] * static_cast<int64_t>(locals_.size());
  return staging_.Buffer(placement_.IndexOf(partner), round) + kOutBytes +
         (row + placement_.IndexOf(to)) * slice_bytes_;
}

void HostsTransport::Send(const CollectiveCall& call, int to, const std::byte* data,
                          int64_t bytes) {
  if (bytes == 0) return;
  const int partner = placement_.Partner(rank(), placement_.HostOf(to));
  messages_.push_back(wiring_.mesh->Send(partner, Tag(call, round(), rank(), to), data, bytes));
  CountNetwork(call, bytes);
}

void HostsTransport::Receive(const CollectiveCall& call, int from, int to, std::byte* data,
                             int64_t bytes) {
  if (bytes == 0) return;
  messages_.push_back(wiring_.mesh->Receive(from, Tag(call, round(), from, to), data, bytes));
}

void HostsTransport::PostShard(const CollectiveCall& call, const std::byte* shard,
                               std::span<const Part> parts) {
  for (const int from : served_) {
    Receive(call, from, placement_.LeaderOf(host_), Arrived(from, round()), parts[from].bytes);
  }
  const int64_t bytes = parts[rank()].bytes;
  for (int other = 0; other < placement_.hosts(); ++other) {
    if (other != host_) Send(call, placement_.LeaderOf(other), shard, bytes);
  }
  CopyBytes(staging_.Buffer(index_, round()), shard, bytes);
}

const std::byte* HostsTransport::ShardOf(int from, uint64_t round) const {
  return Here(from) ? staging_.Buffer(placement_.IndexOf(from), round) : Arrived(from, round);
}

void HostsTransport::PostSlices(const CollectiveCall& call, const std::byte* data,
                                std::span<const Part> parts) {
  for (const int from : served_) {
    for (const int to : locals_) {
      Receive(call, from, to, ArrivedFor(from, to, round()), PairBytes(call, from, to));
    }
  }
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size();
    if (!Here(to)) Send(call, to, data + parts[to].begin, parts[to].bytes);
  }
  for (const int to : locals_) {
    if (to == rank()) continue;
    CopyBytes(staging_.Slice(index_, placement_.IndexOf(to), round()), data + parts[to].begin,
              parts[to].bytes);
  }
}

const std::byte* HostsTransport::SliceOf(int from, uint64_t round) const {
  return Here(from) ? staging_.Slice(placement_.IndexOf(from), index_, round)
                    : ArrivedFor(from, rank(), round);
}

void HostsTransport::Begin(const CollectiveCall& call) {
  begun_ = false;
  member_.BeginUncompared(call);
  if (index_ != 0) return;
  HostCall mine;
  mine.first = call;
  for (size_t i = 1; i < locals_.size() && mine.odd_rank < 0; ++i) {
    if (Alike(call, member_.CallOf(static_cast<int>(i)))) continue;
    mine.odd_rank = locals_[i];
    mine.odd = member_.CallOf(static_cast<int>(i));
  }
  watch_.TellCall(mine);
}

// Waits until all that was posted has arrived on this host, for everybody to read. The first time
// in a call all hosts also compare their calls.
void HostsTransport::Settle(const CollectiveCall& call) {
  if (!begun_) {
    begun_ = true;
    if (index_ == 0) CompareHosts(call);
    member_.Meet(kPatienceS);
  }
  for (TcpMesh::Message& message : messages_) {
    watch_.Expect(call, message.peer());
    if (!message.Wait()) throw CommError("aborted");
  }
  watch_.ExpectNothing();
  messages_.clear();
  member_.Meet(kPatienceS);
}

// Waits for all hosts' calls, and aborts with the first rank whose call is not rank 0's: the same
// one on every host.
void HostsTransport::CompareHosts(const CollectiveCall& call) {
  const std::vector<HostCall> calls = watch_.AwaitCalls(call);
  const CollectiveCall& first = calls[0].first;
  int odd_rank = size();
  CollectiveCall odd;
  for (int host = 0; host < placement_.hosts(); ++host) {
    const HostCall& theirs = calls[host];
    const bool leader_is_odd = !Alike(theirs.first, first);
    if (!leader_is_odd && theirs.odd_rank < 0) continue;
    const int rank = leader_is_odd ? placement_.LeaderOf(host) : theirs.odd_rank;
    if (rank >= odd_rank) continue;
    odd_rank = rank;
    odd = leader_is_odd ? theirs.first : theirs.odd;
  }
  if (odd_rank == size()) return;
  const std::string why = "ranks disagree: rank " + std::to_string(placement_.NameOf(0)) +
                          " is in " + ToString(first) + ", rank " +
                          std::to_string(placement_.NameOf(odd_rank)) + " in " + ToString(odd);
  member_.Abort(why);
  throw CommError(why);
}

namespace {

// The words that rank or host `from` has for `to`: a line of the key that it has set.
std::string LineFor(Store& store, const std::string& key, int from, int to) {
  std::istringstream lines(store.Get(key + std::to_string(from)));
  std::string whom, words;
  while (lines >> whom >> words && whom != std::to_string(to)) {
  }
  return words;
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
  const int rank = group.rank();
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
  const std::string mesh_key = key + "mesh/", door_key = key + "door/";
  std::vector<int> others;  // Hosts.
  for (int other = 0; other < placement.hosts(); ++other) {
    if (other != host) others.push_back(other);
  }

  Wiring wiring;
  UniqueFd made;
  std::atomic<bool> failed{false};
  std::unique_ptr<TcpDoor> door;  // For other leaders.
  Card mine = MyCard();
  mine.words = address;
  mine.error = ErrorOf([&] {
    const auto tell = [&](const std::string& to, const auto& from, const std::vector<int>& whom) {
      std::string lines;
      for (const int other : whom) {
        lines += std::to_string(other) + " " + from.AddressFor(other) + "\n";
      }
      store.Set(to, lines);
    };
    wiring.mesh = std::make_unique<TcpMesh>(rank, peers, address, options.timeout_s);
    tell(mesh_key + std::to_string(rank), *wiring.mesh, peers);
    if (rank != leader) return;
    made = MakeSharedMemory(bytes);
    mine.fd = made.get();
    door = std::make_unique<TcpDoor>(host, others, address, failed);
    tell(door_key + std::to_string(host), *door, others);
  });
  const std::vector<Card> cards = ExchangeCards(store, key + "cards", what, group, mine);

  Card ready;
  ready.error = ErrorOf([&] {
    for (int other = 0; other < placement.hosts(); ++other) {
      wiring.addresses.push_back(cards[placement.LeaderOf(other)].words);
    }
    wiring.local = ReachMemory(group, locals, cards, made, bytes);
    const FailureWatch watch(store, [&] {
      failed = true;
      wiring.mesh->Abort();
    });
    std::vector<Socket> sockets;
    if (rank == leader) {
      sockets.resize(placement.hosts());
      for (const int other : others) {
        sockets[other] = door->Connect(other, LineFor(store, door_key, other, host),
                                       options.timeout_s, "host " + wiring.addresses[other]);
      }
    }
    wiring.links = std::make_unique<HostLinks>(host, std::move(sockets));
    for (const int peer : peers) {
      wiring.mesh->Connect(peer, LineFor(store, mesh_key, peer, rank));
    }
  });
  ExchangeCards(store, key + "ready", what, group, ready);
  return MakeCpuCommunicator(
      group, std::make_shared<HostsTransport>(std::move(wiring), placement, rank, options));
}

}  // namespace fsdp
