#include "trainer/comm/shm/shm_communicator.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/comm/reduce.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/shm/shared_memory.h"
#include "trainer/comm/shm/staged_transport.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

// Bytes of a slice for each peer, in whole cache lines.
int64_t SliceBytes(int size) {
  return kShmStagingBytes / std::max(1, size - 1) / Staging::kLine * Staging::kLine;
}

class ShmTransport final : public StagedTransport {
 public:
  ShmTransport(LocalMemory memory, const RankGroup& group, const CommOptions& options)
      : StagedTransport(group.rank(), group.size(), kShmStagingBytes, SliceBytes(group.size()),
                        /*ahead=*/false),
        memory_(std::move(memory)),
        group_(group),
        staging_(memory_.mapping->data(), size(), kShmStagingBytes, SliceBytes(size())),
        member_(
            memory_.mapping->data(), rank(), size(), options, [this] { return FindDead(); },
            group.ranks()) {}

  void Abort(const std::string& why) override { member_.Abort(why); }
  void Leave() override { member_.Leave(); }

 private:
  void Begin(const CollectiveCall&) override { begun_ = false; }

  void Settle(const CollectiveCall& call) override {
    std::exchange(begun_, true) ? member_.Meet() : member_.Begin(call);
  }

  void PostShard(const CollectiveCall&, const std::byte* shard,
                 std::span<const Part> parts) override {
    CopyBytes(staging_.Buffer(rank(), round()), shard, parts[rank()].bytes);
  }
  const std::byte* ShardOf(int from, uint64_t round) const override {
    return staging_.Buffer(from, round);
  }

  void PostSlices(const CollectiveCall&, const std::byte* data,
                  std::span<const Part> parts) override {
    for (int i = 1; i < size(); ++i) {
      const int to = (rank() + i) % size();
      CopyBytes(staging_.Slice(rank(), to, round()), data + parts[to].begin, parts[to].bytes);
    }
  }
  const std::byte* SliceOf(int from, uint64_t round) const override {
    return staging_.Slice(from, rank(), round);
  }

  std::string FindDead() {
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || !memory_.peers[r].HasEnded()) continue;
      return "rank " + std::to_string(group_.NameOf(r)) + " died (process " +
             std::to_string(memory_.peers[r].pid()) + ")";
    }
    return "";
  }

  const LocalMemory memory_;
  const RankGroup group_;
  const Staging staging_;
  Member member_;
  bool begun_ = false;  // Whether the current call has had its first meeting.
};

}  // namespace

int64_t ShmBytes(int size) { return Staging::Bytes(size, kShmStagingBytes); }

std::unique_ptr<Communicator> CreateShmCommunicator(Store& store, const std::string& name,
                                                    const RankGroup& group,
                                                    const CommOptions& options) {
  if (group.size() > Gate::kMaxSize) {
    throw std::invalid_argument("[CreateShmCommunicator] " + std::to_string(group.size()) +
                                " ranks, want at most " + std::to_string(Gate::kMaxSize));
  }
  const std::string key = "shm/" + name, what = "[shm] " + name;
  const int64_t bytes = ShmBytes(group.size());
  UniqueFd made;
  Card mine = MyCard();
  mine.words = ProcessSpace();
  mine.error = ErrorOf([&] {
    if (group.rank() != 0) return;
    made = MakeSharedMemory(bytes);
    mine.fd = made.get();
  });
  const std::vector<Card> cards = ExchangeCards(store, key + "/cards", what, group, mine);
  std::vector<int> locals;
  for (int r = 0; r < group.size(); ++r) {
    locals.push_back(r);
    if (cards[r].words == cards[0].words) continue;
    throw CommError(what + ": ranks " + std::to_string(group.NameOf(0)) + " and " +
                    std::to_string(group.NameOf(r)) + " are not in one PID namespace of one host");
  }
  LocalMemory memory;
  Card mapped;
  mapped.error = ErrorOf([&] { memory = ReachMemory(group, locals, cards, made, bytes); });
  ExchangeCards(store, key + "/mapped", what, group, mapped);
  return MakeCpuCommunicator(group,
                             std::make_shared<ShmTransport>(std::move(memory), group, options));
}

}  // namespace fsdp
