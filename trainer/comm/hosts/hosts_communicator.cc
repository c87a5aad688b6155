#include "trainer/comm/hosts/hosts_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/comm/cpu_communicator.h"
#include "trainer/comm/gloo/gloo_mesh.h"
#include "trainer/comm/hosts/host_links.h"
#include "trainer/comm/patience.h"
#include "trainer/comm/reduce.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/shm/shared_memory.h"
#include "trainer/comm/socket.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPage = 4096;
constexpr int64_t kLine = 64;                   // Bytes: pieces begin on cache lines.
constexpr int64_t kOutBytes = 512 << 10;        // What a rank stages for its own host, twice.
constexpr int64_t kLeastInBytes = 2 << 20;      // What it receives from others, twice.
constexpr int64_t kLeastSliceBytes = 16 << 10;  // Of a message, however many hosts there are.
constexpr int kWatchMs = 50;
// Who waits for a rank of its own host gives those that wait for another host so much longer: they
// know who is missing.
constexpr double kPatienceS = 3;
constexpr std::chrono::milliseconds kAnswerTime{500};  // For a host to say which rank is late.
constexpr std::chrono::seconds kReasonTime{2};         // For the reason of a lost connection.

// Calls that a rank of the host has completed: the most of them. Then all of its ranks have
// received what they wait for in those calls, and sent what they owe. Behind the rendezvous.
using Completed = std::atomic<uint64_t>;

int64_t ControlBytes(int ranks) {
  return (Rendezvous::Bytes(ranks) + static_cast<int64_t>(sizeof(Completed)) + kPage - 1) / kPage *
         kPage;
}

int64_t InBytes(int most_served, int largest_host) {
  return std::max(kLeastInBytes, most_served * largest_host * kLeastSliceBytes);
}

// Between leaders.
enum Frame : uint32_t { kCall, kAbort, kAsk, kAnswer };

// What the ranks of a host are about to do: its leader's call, and that of the first rank which is
// about to do something else.
struct HostCall {
  CollectiveCall first;
  int odd_rank = -1;
  CollectiveCall odd;
};

template <typename T>
std::string ToBytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
T FromBytes(const std::string& text) {
  T value;
  if (text.size() < sizeof(value)) throw CommError("a message between hosts is cut short");
  std::memcpy(&value, text.data(), sizeof(value));
  return value;
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
        static_cast<uint64_t>(call.root), static_cast<uint64_t>(call.n), round,
        static_cast<uint64_t>(from), static_cast<uint64_t>(to)}) {
    tag = Mix(tag ^ word);
  }
  return tag;
}

struct Wiring {
  std::unique_ptr<SharedMapping> mapping;
  std::vector<PeerProcess> peers;  // Of this host, by index.
  std::unique_ptr<GlooMesh> mesh;
  std::unique_ptr<HostLinks> links;
  std::vector<std::string> addresses;  // By host.
};

class HostsTransport final : public Transport {
 public:
  HostsTransport(Wiring wiring, const HostPlacement& placement, int rank,
                 const CommOptions& options)
      : wiring_(std::move(wiring)),
        placement_(placement),
        rank_(rank),
        host_(placement.HostOf(rank)),
        locals_(placement.RanksOf(host_)),
        index_(placement.IndexOf(rank)),
        leads_(index_ == 0),
        timeout_s_(options.timeout_s),
        in_bytes_(InBytes(placement.MostServed(), placement.LargestHost())),
        gather_bytes_(
            std::min(kOutBytes, in_bytes_ / std::max(1, placement.MostServed()) / kLine * kLine)),
        slice_bytes_(SliceBytes()),
        slot_(placement.size()),
        member_(wiring_.mapping->data(), index_, static_cast<int>(locals_.size()), options,
                /*watch=*/nullptr, locals_),
        completed_(*reinterpret_cast<Completed*>(
            wiring_.mapping->data() + Rendezvous::Bytes(static_cast<int>(locals_.size())))),
        inbox_(placement.hosts()),
        sources_(placement.size()) {
    for (const int local : locals_) {
      const std::vector<int> served = placement.Served(local);
      for (size_t i = 0; i < served.size(); ++i) slot_[served[i]] = static_cast<int>(i);
      if (local == rank) served_ = served;
    }
    watcher_ = std::thread([this] { Watch(); });
  }

  ~HostsTransport() override {
    stop_ = true;
    wiring_.links->Wake();
    watcher_.join();
    messages_.clear();
  }

  void Run(const CollectiveCall& call) override {
    begun_ = false;
    try {
      Dispatch(call);
    } catch (const CommError& error) {
      messages_.clear();
      throw CommError(ReasonFor(error.what(), call));
    }
    uint64_t before = completed_;
    while (before <= call.sequence &&
           !completed_.compare_exchange_weak(before, call.sequence + 1)) {
    }
    wiring_.links->Wake();  // An abort may wait for this.
  }

  void Abort(const std::string& why) override {
    member_.Abort(why);
    wiring_.links->Wake();
  }
  void Leave() override {
    member_.Leave();
    wiring_.links->Wake();
  }

 private:
  // ---- The collectives.

  void Dispatch(const CollectiveCall& call) {
    switch (call.kind) {
      case Collective::kAllGather:
        return AllGather(call);
      case Collective::kReduceScatter:
        return ReduceScatter(call);
      case Collective::kAllReduce:
        return AllReduce(call);
      case Collective::kAllToAll:
        return AllToAll(call);
      case Collective::kBroadcast:
        return Broadcast(call);
    }
  }

  int size() const { return placement_.size(); }
  bool Here(int rank) const { return placement_.HostOf(rank) == host_; }

  // The same on all hosts.
  int64_t SliceBytes() const {
    const int64_t in = in_bytes_ / std::max(1, placement_.MostServed() * placement_.LargestHost());
    const int64_t out = kOutBytes / std::max(1, placement_.LargestHost() - 1);
    return std::min(in, out) / kLine * kLine;
  }

  // Rank `owner`'s memory for round `round`, twice of each kind. Two are enough: who fills one for
  // round k + 2 has passed the meeting of round k + 1, at which all had finished reading round k.
  std::byte* Memory(int owner, uint64_t round, int64_t offset) const {
    const int64_t both = kOutBytes + in_bytes_;
    return wiring_.mapping->data() + ControlBytes(static_cast<int>(locals_.size())) +
           (2 * placement_.IndexOf(owner) + static_cast<int64_t>(round % 2)) * both + offset;
  }
  std::byte* Staging(int owner, uint64_t round) const { return Memory(owner, round, 0); }
  // Of it, the part for `reader`, another rank of this host.
  std::byte* Slice(int owner, int reader, uint64_t round) const {
    const int count = static_cast<int>(locals_.size());
    const int place = (placement_.IndexOf(reader) - placement_.IndexOf(owner) - 1 + count) % count;
    return Staging(owner, round) + place * slice_bytes_;
  }
  // Where the shard of `from`, a rank of another host, arrives.
  std::byte* Arrived(int from, uint64_t round) const {
    return Memory(placement_.Partner(from, host_), round, kOutBytes + slot_[from] * gather_bytes_);
  }
  // ... and what it has for `to`, a rank of this one.
  std::byte* ArrivedFor(int from, int to, uint64_t round) const {
    const int64_t row = slot_[from] * static_cast<int64_t>(locals_.size());
    return Memory(placement_.Partner(from, host_), round,
                  kOutBytes + (row + placement_.IndexOf(to)) * slice_bytes_);
  }

  void Send(const CollectiveCall& call, int to, const std::byte* data, int64_t bytes) {
    if (bytes == 0) return;
    const int partner = placement_.Partner(rank_, placement_.HostOf(to));
    messages_.push_back(wiring_.mesh->Send(partner, Tag(call, round_, rank_, to), data, bytes));
  }
  void Receive(const CollectiveCall& call, int from, int to, std::byte* data, int64_t bytes) {
    if (bytes == 0) return;
    messages_.push_back(wiring_.mesh->Receive(from, Tag(call, round_, from, to), data, bytes));
  }

  // A shard of `bytes` for everybody, or from `root` alone.
  void PostShard(const CollectiveCall& call, const std::byte* shard,
                 const std::function<int64_t(int rank)>& bytes) {
    for (const int from : served_) {
      Receive(call, from, placement_.LeaderOf(host_), Arrived(from, round_), bytes(from));
    }
    for (int other = 0; other < placement_.hosts(); ++other) {
      if (other != host_) Send(call, placement_.LeaderOf(other), shard, bytes(rank_));
    }
    CopyBytes(Staging(rank_, round_), shard, bytes(rank_));
  }
  const std::byte* ShardOf(int from, uint64_t round) const {
    return Here(from) ? Staging(from, round) : Arrived(from, round);
  }

  // A slice for each rank, from each rank. `bytes(r)`: of the slice for rank r.
  void PostSlices(const CollectiveCall& call,
                  const std::function<const std::byte*(int rank)>& slice,
                  const std::function<int64_t(int rank)>& bytes) {
    for (const int from : served_) {
      for (const int to : locals_) {
        Receive(call, from, to, ArrivedFor(from, to, round_), bytes(to));
      }
    }
    for (int i = 1; i < size(); ++i) {
      const int to = (rank_ + i) % size();
      if (!Here(to)) Send(call, to, slice(to), bytes(to));
    }
    for (const int to : locals_) {
      if (to != rank_) CopyBytes(Slice(rank_, to, round_), slice(to), bytes(to));
    }
  }
  const std::byte* SliceOf(int from, uint64_t round) const {
    return Here(from) ? Slice(from, rank_, round) : ArrivedFor(from, rank_, round);
  }

  // Runs post(begin, count), in which round_ is the round, then consume(begin, count, round) for
  // [0, n) in pieces of at most `most`: once for n = 0, for even then the ranks meet. What is
  // posted travels while the piece before it is consumed.
  template <typename Post, typename Consume>
  void InPieces(const CollectiveCall& call, int64_t n, int64_t most, Post post, Consume consume) {
    const auto count = [&](int64_t begin) { return std::min(most, n - begin); };
    Begin(call);
    post(int64_t{0}, count(0));
    for (int64_t begin = 0; begin == 0 || begin < n; begin += most) {
      const uint64_t round = Settle(call);
      if (begin + most < n) post(begin + most, count(begin + most));
      consume(begin, count(begin), round);
    }
  }

  void AllGather(const CollectiveCall& call) {
    const Copy copy = CopyFor(call.bytes() * size());
    InPieces(
        call, call.bytes(), gather_bytes_,
        [&](int64_t begin, int64_t bytes) {
          PostShard(call, call.in + begin, [bytes](int) { return bytes; });
        },
        [&](int64_t begin, int64_t bytes, uint64_t round) {
          copy(call.out + rank_ * call.bytes() + begin, call.in + begin, bytes);
          for (int i = 1; i < size(); ++i) {
            const int from = (rank_ + i) % size();
            copy(call.out + from * call.bytes() + begin, ShardOf(from, round), bytes);
          }
        });
  }

  void ReduceScatter(const CollectiveCall& call) {
    const int64_t element = SizeOf(call.dtype);
    const auto mine = [&](int64_t begin) { return call.in + (rank_ * call.n + begin) * element; };
    InPieces(
        call, call.n, slice_bytes_ / element,
        [&](int64_t begin, int64_t count) {
          PostSlices(
              call, [&](int to) { return call.in + (to * call.n + begin) * element; },
              [&](int) { return count * element; });
        },
        [&](int64_t begin, int64_t count, uint64_t round) {
          Sum(call, mine(begin), count, round, call.out + begin * element);
        });
  }

  // A reduce-scatter and an all-gather of each piece.
  void AllReduce(const CollectiveCall& call) {
    const int64_t element = SizeOf(call.dtype);
    const int64_t most = slice_bytes_ / element * size();
    Begin(call);
    for (int64_t begin = 0; begin == 0 || begin < call.n; begin += most) {
      const int64_t count = std::min(most, call.n - begin);
      const auto border = [&](int r) { return begin + count * r / size(); };
      const auto bytes = [&](int r) { return (border(r + 1) - border(r)) * element; };
      const auto slice = [&](int r) { return call.out + border(r) * element; };
      PostSlices(call, slice, bytes);
      uint64_t round = Settle(call);
      Sum(call, slice(rank_), bytes(rank_) / element, round, slice(rank_));
      PostShard(call, slice(rank_), bytes);
      round = Settle(call);
      for (int i = 1; i < size(); ++i) {
        const int from = (rank_ + i) % size();
        CopyBytes(slice(from), ShardOf(from, round), bytes(from));
      }
    }
  }

  void AllToAll(const CollectiveCall& call) {
    InPieces(
        call, call.bytes(), slice_bytes_,
        [&](int64_t begin, int64_t bytes) {
          PostSlices(
              call, [&](int to) { return call.in + to * call.bytes() + begin; },
              [bytes](int) { return bytes; });
        },
        [&](int64_t begin, int64_t bytes, uint64_t round) {
          const int64_t mine = rank_ * call.bytes() + begin;
          CopyBytes(call.out + mine, call.in + mine, bytes);
          for (int i = 1; i < size(); ++i) {
            const int from = (rank_ + i) % size();
            CopyBytes(call.out + from * call.bytes() + begin, SliceOf(from, round), bytes);
          }
        });
  }

  void Broadcast(const CollectiveCall& call) {
    InPieces(
        call, call.bytes(), gather_bytes_,
        [&](int64_t begin, int64_t bytes) {
          PostShard(call, call.in + begin,
                    [&, bytes](int r) { return r == call.root ? bytes : 0; });
        },
        [&](int64_t begin, int64_t bytes, uint64_t round) {
          if (rank_ != call.root) CopyBytes(call.out + begin, ShardOf(call.root, round), bytes);
        });
  }

  // Over all ranks, this one's part being `mine`; `out` may be `mine`.
  void Sum(const CollectiveCall& call, const std::byte* mine, int64_t count, uint64_t round,
           std::byte* out) {
    for (int r = 0; r < size(); ++r) sources_[r] = r == rank_ ? mine : SliceOf(r, round);
    SumInOrder(call.dtype, sources_, count, out);
  }

  // ---- Meetings.

  void Begin(const CollectiveCall& call) {
    member_.BeginUncompared(call);
    if (leads_) {
      HostCall mine;
      mine.first = call;
      for (size_t i = 1; i < locals_.size() && mine.odd_rank < 0; ++i) {
        if (Alike(call, member_.CallOf(static_cast<int>(i)))) continue;
        mine.odd_rank = locals_[i];
        mine.odd = member_.CallOf(static_cast<int>(i));
      }
      wiring_.links->SendToAll(kCall, ToBytes(mine));
      const std::lock_guard lock(mutex_);
      inbox_[host_].push_back(mine);
    }
  }

  // What has been posted has arrived, on this host, for everybody to read. The first time in a call
  // all hosts have compared their calls, too.
  uint64_t Settle(const CollectiveCall& call) {
    if (!begun_) {
      begun_ = true;
      if (leads_) CompareHosts(call);
      member_.Meet(kPatienceS);
    }
    for (GlooMesh::Message& message : messages_) {
      Expect(call, message.peer());
      if (!message.Wait()) throw CommError("aborted");
    }
    ExpectNothing();
    messages_.clear();
    member_.Meet(kPatienceS);
    return round_++;
  }

  // Waits for all hosts' calls, and aborts with the first rank whose call is not rank 0's: the same
  // one on every host.
  void CompareHosts(const CollectiveCall& call) {
    std::vector<HostCall> calls;
    {
      std::unique_lock lock(mutex_);
      SetExpectation({call, -1, Patience(Timeout()), {}});
      changed_.wait(lock, [&] { return told_ || MissingHosts().empty(); });
      expectation_.reset();
      if (told_) throw CommError("aborted");
      for (auto& queue : inbox_) {
        calls.push_back(queue.front());
        queue.pop_front();
      }
    }
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
    const std::string why = "ranks disagree: rank 0 is in " + ToString(first) + ", rank " +
                            std::to_string(odd_rank) + " in " + ToString(odd);
    member_.Abort(why);
    throw CommError(why);
  }

  // ---- Watching, and saying why.

  struct Expectation {
    CollectiveCall call;
    int peer;  // Whose message; -1: calls of all hosts.
    Patience patience;
    std::optional<Clock::time_point> asked;  // Hosts that are late have been asked who it is.
  };

  Clock::duration Timeout() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
  }
  void SetExpectation(const Expectation& expectation) {
    expectation_ = expectation;
    answers_.assign(placement_.hosts(), std::nullopt);
  }
  void Expect(const CollectiveCall& call, int peer) {
    const std::lock_guard lock(mutex_);
    SetExpectation({call, peer, Patience(Timeout()), {}});
  }
  void ExpectNothing() {
    const std::lock_guard lock(mutex_);
    expectation_.reset();
  }
  std::vector<int> MissingHosts() const {  // mutex_ is held.
    std::vector<int> missing;
    for (int host = 0; host < placement_.hosts(); ++host) {
      if (inbox_[host].empty()) missing.push_back(host);
    }
    return missing;
  }
  std::string Where(int host) const { return "host " + wiring_.addresses[host]; }

  // What counts where `error` has ended this rank's call: the group's reason, which may be on its
  // way still, as a connection that ends is noticed at both ends.
  std::string ReasonFor(const std::string& error, const CollectiveCall& call) {
    const auto until = Clock::now() + kReasonTime;
    while (!member_.aborted() && Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (!member_.aborted()) Abort(error + ", in " + ToString(call));
    return member_.Reason(error);
  }

  void Watch() {
    const auto on_message = [this](int host, uint32_t type, const std::string& text) {
      try {
        OnMessage(host, static_cast<Frame>(type), text);
      } catch (const CommError& error) {
        member_.Abort(error.what());
      }
    };
    const auto on_lost = [this](int host) {
      if (left_.count(host) == 0) LostHost(host);
    };
    while (!stop_) {
      wiring_.links->Poll(kWatchMs, on_message, on_lost);
      Check();
    }
    Check();  // Those who wait for this rank are told.
  }

  void OnMessage(int host, Frame type, const std::string& text) {
    switch (type) {
      case kCall: {
        const std::lock_guard lock(mutex_);
        inbox_[host].push_back(FromBytes<HostCall>(text));
        changed_.notify_all();
        return;
      }
      case kAbort:
        left_.insert(host);
        // That host had brought all it owed to the calls before; they may be under way here.
        deferred_.push_back({FromBytes<uint64_t>(text), text.substr(sizeof(uint64_t))});
        return;
      case kAsk:
        wiring_.links->Send(host, kAnswer, member_.LateFor(FromBytes<uint64_t>(text)));
        return;
      case kAnswer: {
        const std::lock_guard lock(mutex_);
        answers_[host] = text;
        return;
      }
    }
  }

  void LostHost(int host) {
    member_.Abort("lost the connection to rank " + std::to_string(placement_.LeaderOf(host)) +
                  ", which speaks for " + placement_.NamesOf(host) + " of " + Where(host));
  }

  // Everything that can end a wait of this rank goes through the gate of its host.
  void Check() {
    if (!member_.aborted()) {
      for (size_t i = 0; i < locals_.size(); ++i) {
        if (static_cast<int>(i) == index_ || !wiring_.peers[i].HasEnded()) continue;
        member_.Abort("rank " + std::to_string(locals_[i]) + " died (process " +
                      std::to_string(wiring_.peers[i].pid()) + ")");
      }
      for (const auto& [calls, why] : deferred_) {
        if (completed_ >= calls) member_.Abort(why);
      }
      CheckTime();
    }
    if (told_ || !member_.aborted()) return;
    if (leads_) {
      const uint64_t completed = completed_;
      wiring_.links->SendToAll(kAbort, ToBytes(completed) + member_.Reason());
    }
    wiring_.mesh->Abort();
    const std::lock_guard lock(mutex_);
    told_ = true;
    changed_.notify_all();
  }

  void CheckTime() {
    std::string who;
    CollectiveCall call;
    {
      const std::lock_guard lock(mutex_);
      if (!expectation_ || !expectation_->patience.over()) return;
      call = expectation_->call;
      if (expectation_->peer >= 0) {
        const int host = placement_.HostOf(expectation_->peer);
        who = "no more data between this rank and rank " + std::to_string(expectation_->peer) +
              " (" + Where(host) + " of " + placement_.NamesOf(host) + ")";
      } else {
        const std::vector<int> missing = MissingHosts();
        if (missing.empty()) return;
        if (!expectation_->asked) {
          for (const int host : missing) {
            wiring_.links->Send(host, kAsk, ToBytes(call.sequence));
          }
          expectation_->asked = Clock::now();
          return;
        }
        const bool all = std::all_of(missing.begin(), missing.end(),
                                     [&](int host) { return answers_[host].has_value(); });
        if (!all && Clock::now() < *expectation_->asked + kAnswerTime) return;
        for (const int host : missing) {
          who += who.empty() ? "" : ", ";
          if (!answers_[host]) {
            who += placement_.NamesOf(host) + " of " + Where(host) + " do not answer";
          } else if (answers_[host]->empty()) {
            who += placement_.NamesOf(host) + " of " + Where(host) + " sent nothing";
          } else {
            who += *answers_[host];
          }
        }
      }
    }
    std::ostringstream why;
    why << ToString(call) << " timed out after " << timeout_s_ << " s: " << who;
    member_.Abort(why.str());
  }

  Wiring wiring_;
  const HostPlacement placement_;
  const int rank_, host_;
  const std::vector<int> locals_;  // The ranks of this host.
  const int index_;                // In locals_.
  const bool leads_;
  const double timeout_s_;
  const int64_t in_bytes_, gather_bytes_, slice_bytes_;
  std::vector<int> served_;
  std::vector<int> slot_;  // By rank of another host: its place in what its partner here serves.
  Member member_;
  uint64_t round_ = 0;  // Rounds so far, the same on all ranks.
  bool begun_ = false;  // Whether hosts have compared their calls.
  std::vector<GlooMesh::Message> messages_;

  Completed& completed_;  // Shared.
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
  std::vector<const std::byte*> sources_;
  std::thread watcher_;
};

// One rank's entry in the exchange: no spaces in any part, an error comes last.
struct Card {
  int pid = 0;
  int fd = -1;
  std::string address = "-";
  int port = 0;
  std::string secret = "-";
  std::string error;

  std::string ToString() const {
    std::ostringstream out;
    out << pid << ' ' << fd << ' ' << address << ' ' << port << ' ' << secret << ' ' << error;
    return out.str();
  }
  static Card Parse(const std::string& text) {
    Card card;
    std::istringstream in(text);
    in >> card.pid >> card.fd >> card.address >> card.port >> card.secret;
    in.get();
    std::getline(in, card.error);
    return card;
  }
};

// Errors travel with the exchanges, so that every rank fails with them and none waits in vain.
template <typename Function>
std::string ErrorOf(Function function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return std::string("U") + error.what();
  } catch (const CommError& error) {
    return std::string("C") + error.what();
  } catch (const DeviceError& error) {
    return std::string("D") + error.what();
  }
  return "";
}

void ThrowFirst(const std::string& name, const HostPlacement& placement,
                const std::vector<std::string>& errors) {
  for (int r = 0; r < placement.size(); ++r) {
    if (errors[r].empty()) continue;
    const std::string text =
        "[hosts] " + name + ", rank " + std::to_string(r) + ": " + errors[r].substr(1);
    if (errors[r][0] == 'D') throw DeviceError(text);
    if (errors[r][0] == 'U') throw ConfigError(text);
    throw CommError(text);
  }
}

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
      : thread_([this, &store, on_failure = std::move(on_failure)] {
          std::unique_lock lock(mutex_);
          while (!over_.wait_for(lock, std::chrono::milliseconds(50), [this] { return done_; })) {
            if (!store.FailureReason().empty()) return on_failure();
          }
        }) {}
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
  const int64_t in = InBytes(placement.MostServed(), placement.LargestHost());
  return ControlBytes(ranks) + ranks * 2 * (kOutBytes + in);
}

int64_t HostsBytesPerRank(int world, int local_world) {
  const int hosts = (world + local_world - 1) / local_world;
  return ControlBytes(local_world) / local_world +
         2 * (kOutBytes + InBytes(hosts - 1, local_world));
}

std::unique_ptr<Communicator> CreateHostsCommunicator(Store& store, const std::string& name,
                                                      int rank, const HostPlacement& placement,
                                                      const std::string& address,
                                                      const CommOptions& options) {
  const int size = placement.size();
  if (rank < 0 || rank >= size) {
    throw std::invalid_argument("[CreateHostsCommunicator] rank " + std::to_string(rank) + " of " +
                                std::to_string(size));
  }
  const int host = placement.HostOf(rank), leader = placement.LeaderOf(host);
  const std::vector<int>& locals = placement.RanksOf(host);
  if (locals.size() > Gate::kMaxSize) {
    throw std::invalid_argument("[CreateHostsCommunicator] " + std::to_string(locals.size()) +
                                " ranks of one host, want at most " +
                                std::to_string(Gate::kMaxSize));
  }
  const int64_t bytes = HostsBytes(placement, static_cast<int>(locals.size()));
  const std::vector<int> peers = placement.Peers(rank);
  const std::string key = "hosts_communicator/" + name + "/";
  const auto mesh_key = [&](int r) { return key + "mesh/" + std::to_string(r); };

  Wiring wiring;
  UniqueFd memory;
  Socket listening;
  Card mine;
  mine.pid = static_cast<int>(getpid());
  mine.error = ErrorOf([&] {
    wiring.mesh = std::make_unique<GlooMesh>(rank, size, peers, address, options.timeout_s);
    std::string addresses;
    for (const int peer : peers) {
      addresses += std::to_string(peer) + " " + wiring.mesh->AddressFor(peer) + "\n";
    }
    store.Set(mesh_key(rank), addresses);
    mine.address = address;
    if (rank != leader) return;
    memory = MakeSharedMemory(bytes);
    mine.fd = memory.get();
    listening = Listen(address, 0);
    mine.port = PortOf(listening);
    if (rank == 0) mine.secret = Secret();
  });
  std::vector<Card> cards;
  std::vector<std::string> errors;
  for (const std::string& text : Exchange(store, key + "cards", rank, size, mine.ToString())) {
    cards.push_back(Card::Parse(text));
    errors.push_back(cards.back().error);
  }
  ThrowFirst(name, placement, errors);

  const std::string error = ErrorOf([&] {
    std::vector<HostDoor> doors;
    for (int other = 0; other < placement.hosts(); ++other) {
      const Card& card = cards[placement.LeaderOf(other)];
      doors.push_back({card.address, card.port});
      wiring.addresses.push_back(card.address);
    }
    if (rank != leader) {
      memory = OpenSharedMemory(cards[leader].pid, cards[leader].fd, bytes,
                                "rank " + std::to_string(leader));
    }
    wiring.mapping = std::make_unique<SharedMapping>(memory.get(), bytes);
    for (const int local : locals) {
      wiring.peers.push_back(local == rank ? PeerProcess() : PeerProcess(cards[local].pid));
    }
    if (rank == leader) {
      wiring.links = std::make_unique<HostLinks>(
          host, ConnectHosts(store, host, listening, doors, cards[0].secret, options.timeout_s));
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
  ThrowFirst(name, placement, Exchange(store, key + "ready", rank, size, error));
  return MakeCpuCommunicator(
      rank, size, std::make_shared<HostsTransport>(std::move(wiring), placement, rank, options));
}

std::unique_ptr<Communicator> CreateGlooCommunicator(Store& store, const std::string& name,
                                                     int rank, int size,
                                                     const CommOptions& options) {
  std::vector<int> key(size);
  std::iota(key.begin(), key.end(), 0);
  return CreateHostsCommunicator(store, name, rank, HostPlacement(key), "127.0.0.1", options);
}

}  // namespace fsdp
