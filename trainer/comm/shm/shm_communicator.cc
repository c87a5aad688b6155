#include "trainer/comm/shm/shm_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "trainer/comm/cpu_communicator.h"
#include "trainer/comm/reduce.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/shm/shared_memory.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr int64_t kPage = 4096;

int64_t ControlBytes(int size) { return (Rendezvous::Bytes(size) + kPage - 1) / kPage * kPage; }

class ShmTransport final : public Transport {
 public:
  ShmTransport(std::unique_ptr<SharedMapping> mapping, std::vector<PeerProcess> peers, int rank,
               int size, const CommOptions& options)
      : mapping_(std::move(mapping)),
        peers_(std::move(peers)),
        // Room for a slice for each peer, in whole cache lines.
        slice_bytes_(kShmStagingBytes / std::max(1, size - 1) / 64 * 64),
        member_(mapping_->data(), rank, size, options, [this] { return FindDead(); }),
        sources_(size) {}

  void Run(const CollectiveCall& call) override {
    begun_ = false;
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

  void Abort(const std::string& why) override { member_.Abort(why); }
  void Leave() override { member_.Leave(); }

 private:
  int rank() const { return member_.rank(); }
  int size() const { return member_.size(); }

  // `owner`'s staging buffer before (to fill) or after (to read) the meeting that ends round
  // `round`. Two are enough: who fills one for round k + 2 has passed meeting k + 1, at which all
  // ranks had finished reading round k.
  std::byte* Staging(int owner, uint64_t round) const {
    return mapping_->data() + ControlBytes(size()) +
           (2 * owner + static_cast<int>(round % 2)) * kShmStagingBytes;
  }
  // The part of it that is meant for `reader`, another rank.
  std::byte* Slice(int owner, int reader, uint64_t round) const {
    return Staging(owner, round) + (reader - owner - 1 + size()) % size() * slice_bytes_;
  }

  // What was staged for this round can now be read.
  uint64_t Exchange(const CollectiveCall& call) {
    if (begun_) {
      member_.Meet();
    } else {
      member_.Begin(call);
      begun_ = true;
    }
    return round_++;
  }

  // Calls piece(begin, count) for [0, n) in pieces of at most `most`; once for n = 0, for even then
  // the ranks meet.
  template <typename Piece>
  static void InPieces(int64_t n, int64_t most, Piece piece) {
    int64_t begin = 0;
    do {
      const int64_t count = std::min(most, n - begin);
      piece(begin, count);
      begin += count;
    } while (begin < n);
  }

  void AllGather(const CollectiveCall& call) {
    const Copy copy = CopyFor(call.bytes() * size());
    InPieces(call.bytes(), kShmStagingBytes, [&](int64_t begin, int64_t bytes) {
      CopyBytes(Staging(rank(), round_), call.in + begin, bytes);
      const uint64_t round = Exchange(call);
      copy(call.out + rank() * call.bytes() + begin, call.in + begin, bytes);
      for (int i = 1; i < size(); ++i) {
        const int peer = (rank() + i) % size();
        copy(call.out + peer * call.bytes() + begin, Staging(peer, round), bytes);
      }
    });
  }

  void ReduceScatter(const CollectiveCall& call) {
    const int64_t element = SizeOf(call.dtype);
    InPieces(call.n, slice_bytes_ / element, [&](int64_t begin, int64_t count) {
      for (int i = 1; i < size(); ++i) {
        const int peer = (rank() + i) % size();
        CopyBytes(Slice(rank(), peer, round_), call.in + (peer * call.n + begin) * element,
                  count * element);
      }
      const uint64_t round = Exchange(call);
      Sum(call, call.in + (rank() * call.n + begin) * element, count, round,
          call.out + begin * element);
    });
  }

  // A reduce-scatter and an all-gather of each piece.
  void AllReduce(const CollectiveCall& call) {
    const int64_t element = SizeOf(call.dtype);
    InPieces(call.n, slice_bytes_ / element * size(), [&](int64_t begin, int64_t count) {
      const auto border = [&](int r) { return begin + count * r / size(); };
      const auto bytes = [&](int r) { return (border(r + 1) - border(r)) * element; };
      for (int i = 1; i < size(); ++i) {
        const int peer = (rank() + i) % size();
        CopyBytes(Slice(rank(), peer, round_), call.in + border(peer) * element, bytes(peer));
      }
      uint64_t round = Exchange(call);
      std::byte* mine = call.out + border(rank()) * element;
      Sum(call, mine, bytes(rank()) / element, round, mine);
      CopyBytes(Staging(rank(), round_), mine, bytes(rank()));
      round = Exchange(call);
      for (int i = 1; i < size(); ++i) {
        const int peer = (rank() + i) % size();
        CopyBytes(call.out + border(peer) * element, Staging(peer, round), bytes(peer));
      }
    });
  }

  void AllToAll(const CollectiveCall& call) {
    InPieces(call.bytes(), slice_bytes_, [&](int64_t begin, int64_t bytes) {
      for (int i = 1; i < size(); ++i) {
        const int peer = (rank() + i) % size();
        CopyBytes(Slice(rank(), peer, round_), call.in + peer * call.bytes() + begin, bytes);
      }
      const uint64_t round = Exchange(call);
      const int64_t mine = rank() * call.bytes() + begin;
      CopyBytes(call.out + mine, call.in + mine, bytes);
      for (int i = 1; i < size(); ++i) {
        const int peer = (rank() + i) % size();
        CopyBytes(call.out + peer * call.bytes() + begin, Slice(peer, rank(), round), bytes);
      }
    });
  }

  void Broadcast(const CollectiveCall& call) {
    InPieces(call.bytes(), kShmStagingBytes, [&](int64_t begin, int64_t bytes) {
      if (rank() == call.root) CopyBytes(Staging(rank(), round_), call.in + begin, bytes);
      const uint64_t round = Exchange(call);
      if (rank() != call.root) CopyBytes(call.out + begin, Staging(call.root, round), bytes);
    });
  }

  // Over all ranks, this one's part being `mine`; `out` may be `mine`.
  void Sum(const CollectiveCall& call, const std::byte* mine, int64_t count, uint64_t round,
           std::byte* out) {
    for (int r = 0; r < size(); ++r) sources_[r] = r == rank() ? mine : Slice(r, rank(), round);
    SumInOrder(call.dtype, sources_, count, out);
  }

  std::string FindDead() {
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || !peers_[r].HasEnded()) continue;
      return "rank " + std::to_string(r) + " died (process " + std::to_string(peers_[r].pid()) +
             ")";
    }
    return "";
  }

  std::unique_ptr<SharedMapping> mapping_;
  std::vector<PeerProcess> peers_;
  const int64_t slice_bytes_;
  Member member_;
  uint64_t round_ = 0;  // Meetings so far, the same on all ranks.
  bool begun_ = false;  // Whether the current call has had its first meeting.
  std::vector<const std::byte*> sources_;
};

// One rank's entry in the exchange: no spaces in any part, an error comes last.
struct Card {
  std::string host;
  int pid = 0;
  int fd = -1;
  std::string error;

  std::string ToString() const {
    return host + " " + std::to_string(pid) + " " + std::to_string(fd) + " " + error;
  }
  static Card Parse(const std::string& text) {
    Card card;
    std::istringstream in(text);
    in >> card.host >> card.pid >> card.fd;
    in.get();
    std::getline(in, card.error);
    return card;
  }
};

}  // namespace

int64_t ShmBytes(int size) { return ControlBytes(size) + size * 2 * kShmStagingBytes; }

std::unique_ptr<Communicator> CreateShmCommunicator(Store& store, const std::string& name, int rank,
                                                    int size, const CommOptions& options) {
  if (size < 1 || size > Gate::kMaxSize || rank < 0 || rank >= size) {
    throw std::invalid_argument("[CreateShmCommunicator] rank " + std::to_string(rank) + " of " +
                                std::to_string(size) +
                                ", want 0 <= rank < size <= " + std::to_string(Gate::kMaxSize));
  }
  // Errors travel with the exchanges, so that every rank fails with them and none waits in vain.
  Card mine{ProcessSpace(), static_cast<int>(getpid()), -1, ""};
  UniqueFd memory;
  if (rank == 0) {
    try {
      memory = MakeSharedMemory(ShmBytes(size));
      mine.fd = memory.get();
    } catch (const DeviceError& error) {
      mine.error = error.what();
    }
  }
  std::vector<Card> cards;
  for (const std::string& text :
       Exchange(store, "shm/" + name + "/cards", rank, size, mine.ToString())) {
    cards.push_back(Card::Parse(text));
  }
  if (!cards[0].error.empty()) throw DeviceError("[shm] " + name + ": " + cards[0].error);
  for (int r = 1; r < size; ++r) {
    if (cards[r].host == cards[0].host) continue;
    throw CommError("[shm] " + name + ": ranks 0 and " + std::to_string(r) +
                    " are not in one PID namespace of one host");
  }

  std::unique_ptr<SharedMapping> mapping;
  std::vector<PeerProcess> peers(size);
  std::string error;
  try {
    if (rank != 0) memory = OpenSharedMemory(cards[0].pid, cards[0].fd, ShmBytes(size), "rank 0");
    mapping = std::make_unique<SharedMapping>(memory.get(), ShmBytes(size));
    for (int r = 0; r < size; ++r) {
      if (r != rank) peers[r] = PeerProcess(cards[r].pid);
    }
  } catch (const DeviceError& e) {
    error = e.what();
  }
  const std::vector<std::string> errors =
      Exchange(store, "shm/" + name + "/mapped", rank, size, error);
  for (int r = 0; r < size; ++r) {
    if (errors[r].empty()) continue;
    throw DeviceError("[shm] " + name + ", rank " + std::to_string(r) + ": " + errors[r]);
  }
  return MakeCpuCommunicator(
      rank, size,
      std::make_shared<ShmTransport>(std::move(mapping), std::move(peers), rank, size, options));
}

}  // namespace fsdp
