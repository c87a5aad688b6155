#include "trainer/comm/thread/thread_communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "trainer/comm/cpu_communicator.h"
#include "trainer/comm/reduce.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/traffic.h"

namespace fsdp {
namespace {

struct Free {
  void operator()(std::byte* data) const {
    ::operator delete[](data, std::align_val_t(Rendezvous::kAlignment));
  }
};
using SharedMemory = std::unique_ptr<std::byte[], Free>;

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<SharedMemory> shared, const RankGroup& group,
                  const CommOptions& options)
      : shared_(std::move(shared)),
        member_(shared_->get(), group.rank(), group.size(), options, /*watch=*/nullptr,
                group.ranks()),
        sources_(group.size()) {}

  void Run(const CollectiveCall& call) override {
    member_.Begin(call);  // From here on all ranks read each other's memory, and nobody waits long.
    switch (call.kind) {
      case Collective::kAllGather:
        AllGather(call);
        break;
      case Collective::kReduceScatter:
        SumSlice(call, member_.rank() * call.n, call.n, call.out);
        break;
      case Collective::kAllReduce:
        AllReduce(call);
        break;
      case Collective::kAllToAll:
        AllToAll(call);
        break;
      case Collective::kBroadcast:
        CopyBytes(call.out, member_.CallOf(call.root).in, call.bytes());
        Took(call.root, call.bytes());
        break;
    }
    member_.MeetSurely();
  }

  void Abort(const std::string& why) override { member_.Abort(why); }
  void Leave() override { member_.Leave(); }

 private:
  // Ranks start at different peers, so that they do not all read the same memory.
  int Peer(int i) const { return (member_.rank() + i) % member_.size(); }

  // Out of what is a peer's: counted for the peer, which is in the same call.
  void Took(int peer, int64_t bytes) {
    if (peer != member_.rank()) CountTaken(member_.CallOf(peer), bytes);
  }

  void AllGather(const CollectiveCall& call) {
    const Copy copy = CopyFor(call.bytes() * member_.size());
    for (int i = 0; i < member_.size(); ++i) {
      const int peer = Peer(i);
      copy(call.out + peer * call.bytes(), member_.CallOf(peer).in, call.bytes());
      Took(peer, call.bytes());
    }
  }

  void AllToAll(const CollectiveCall& call) {
    for (int i = 0; i < member_.size(); ++i) {
      const int peer = Peer(i);
      const int64_t element = SizeOf(call.dtype);
      const Stretch from = SentOf(call, peer, member_.rank());
      const Stretch to = ArrivedOf(call, member_.rank(), peer);
      CopyBytes(call.out + to.begin * element, member_.CallOf(peer).in + from.begin * element,
                to.count * element);
      Took(peer, to.count * element);
    }
  }

  // Each rank sums its slice into its own tensor, where nobody else reads, then fetches the others.
  void AllReduce(const CollectiveCall& call) {
    const auto border = [&](int rank) { return call.n * rank / member_.size(); };
    const auto slice_bytes = [&](int rank) {
      return (border(rank + 1) - border(rank)) * SizeOf(call.dtype);
    };
    const int64_t begin = border(member_.rank());
    SumSlice(call, begin, border(member_.rank() + 1) - begin,
             call.out + begin * SizeOf(call.dtype));
    member_.MeetSurely();
    for (int i = 1; i < member_.size(); ++i) {
      const int peer = Peer(i);
      const int64_t offset = border(peer) * SizeOf(call.dtype);
      CopyBytes(call.out + offset, member_.CallOf(peer).in + offset, slice_bytes(peer));
      Took(peer, slice_bytes(peer));
    }
  }

  void SumSlice(const CollectiveCall& call, int64_t begin, int64_t count, std::byte* out) {
    for (int r = 0; r < member_.size(); ++r) {
      sources_[r] = member_.CallOf(r).in + begin * SizeOf(call.dtype);
      Took(r, count * SizeOf(call.dtype));
    }
    SumInOrder(call.dtype, sources_, count, call.result, out,
               PastCaches(call.n * SizeOf(call.result)));
  }

  std::shared_ptr<SharedMemory> shared_;
  Member member_;
  std::vector<const std::byte*> sources_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> CreateThreadCommunicators(const std::vector<int>& ranks,
                                                                     const CommOptions& options) {
  const int size = static_cast<int>(ranks.size());
  if (size < 1 || size > Gate::kMaxSize) {
    throw std::invalid_argument("[CreateThreadCommunicators] size is " + std::to_string(size) +
                                ", want 1 to " + std::to_string(Gate::kMaxSize));
  }
  const int64_t bytes = Rendezvous::Bytes(size);
  auto shared = std::make_shared<SharedMemory>(
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(Rendezvous::kAlignment))));
  std::memset(shared->get(), 0, bytes);
  std::vector<std::unique_ptr<Communicator>> out;
  for (const int rank : ranks) {
    const RankGroup group(ranks, rank);
    out.push_back(
        MakeCpuCommunicator(group, std::make_shared<ThreadTransport>(shared, group, options)));
  }
  return out;
}

std::vector<std::unique_ptr<Communicator>> CreateThreadCommunicators(int size,
                                                                     const CommOptions& options) {
  std::vector<int> ranks(std::max(0, size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return CreateThreadCommunicators(ranks, options);
}

}  // namespace fsdp
