#include "trainer/comm/shm/staged_transport.h"

#include <algorithm>

#include "trainer/comm/reduce.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/traffic.h"
#include "trainer/core/round_up.h"

namespace fsdp {

int64_t Staging::ControlBytes(int ranks, int64_t more) {
  constexpr int64_t kPage = 4096;
  return RoundUp(Rendezvous::Bytes(ranks) + more, kPage);
}

StagedTransport::StagedTransport(int rank, int size, int64_t shard_bytes, int64_t slice_bytes,
                                 bool ahead)
    : rank_(rank),
      size_(size),
      shard_bytes_(shard_bytes),
      slice_bytes_(slice_bytes),
      ahead_(ahead),
      parts_(size),
      sources_(size) {}

void StagedTransport::Run(const CollectiveCall& call) {
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

uint64_t StagedTransport::EndRound(const CollectiveCall& call) {
  Settle(call);
  return round_++;
}

// A piece that is posted is copied by each of the others, once.
void StagedTransport::GiveShard(const CollectiveCall& call, const std::byte* shard) {
  PostShard(call, shard, parts_);
  CountTaken(call, (size_ - 1) * parts_[rank_].bytes);
}

void StagedTransport::GiveSlices(const CollectiveCall& call, const std::byte* data) {
  PostSlices(call, data, parts_);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) CountTaken(call, parts_[r].bytes);
  }
}

// Runs post(begin, count), then consume(begin, count, round), for [0, n) in pieces of at most
// `most`: once for n = 0, for even then the ranks meet.
template <typename Post, typename Consume>
void StagedTransport::InPieces(const CollectiveCall& call, int64_t n, int64_t most, Post post,
                               Consume consume) {
  const auto count = [&](int64_t begin) { return std::min(most, n - begin); };
  Begin(call);
  post(int64_t{0}, count(0));
  for (int64_t begin = 0; begin == 0 || begin < n; begin += most) {
    const uint64_t round = EndRound(call);
    const int64_t next = begin + most;
    if (ahead_ && next < n) post(next, count(next));
    consume(begin, count(begin), round);
    if (!ahead_ && next < n) post(next, count(next));
  }
}

void StagedTransport::AllGather(const CollectiveCall& call) {
  const Copy copy = CopyFor(call.bytes() * size_);
  InPieces(
      call, call.bytes(), shard_bytes_,
      [&](int64_t begin, int64_t bytes) {
        std::fill(parts_.begin(), parts_.end(), Part{0, bytes});
        GiveShard(call, call.in + begin);
      },
      [&](int64_t begin, int64_t bytes, uint64_t round) {
        copy(call.out + rank_ * call.bytes() + begin, call.in + begin, bytes);
        for (int i = 1; i < size_; ++i) {
          const int from = (rank_ + i) % size_;
          copy(call.out + from * call.bytes() + begin, ShardOf(from, round), bytes);
        }
      });
}

void StagedTransport::ReduceScatter(const CollectiveCall& call) {
  const int64_t element = SizeOf(call.dtype);
  InPieces(
      call, call.n, slice_bytes_ / element,
      [&](int64_t begin, int64_t count) {
        for (int r = 0; r < size_; ++r) {
          parts_[r] = {(r * call.n + begin) * element, count * element};
        }
        GiveSlices(call, call.in);
      },
      [&](int64_t begin, int64_t count, uint64_t round) {
        Sum(call, call.in + (rank_ * call.n + begin) * element, count, round,
            call.out + begin * SizeOf(call.result));
      });
}

// A reduce-scatter and an all-gather of each piece.
void StagedTransport::AllReduce(const CollectiveCall& call) {
  const int64_t element = SizeOf(call.dtype);
  const int64_t most = slice_bytes_ / element * size_;
  Begin(call);
  for (int64_t begin = 0; begin == 0 || begin < call.n; begin += most) {
    const int64_t count = std::min(most, call.n - begin);
    const auto border = [&](int r) { return (begin + count * r / size_) * element; };
    for (int r = 0; r < size_; ++r) parts_[r] = {border(r), border(r + 1) - border(r)};
    GiveSlices(call, call.out);
    uint64_t round = EndRound(call);
    std::byte* mine = call.out + parts_[rank_].begin;
    Sum(call, mine, parts_[rank_].bytes / element, round, mine);
    GiveShard(call, mine);
    round = EndRound(call);
    for (int i = 1; i < size_; ++i) {
      const int from = (rank_ + i) % size_;
      CopyBytes(call.out + parts_[from].begin, ShardOf(from, round), parts_[from].bytes);
    }
  }
}

void StagedTransport::AllToAll(const CollectiveCall& call) {
  const int64_t element = SizeOf(call.dtype);
  InPieces(
      call, MostForOne(call) * element, slice_bytes_,
      [&](int64_t begin, int64_t) {
        piece_ = begin;
        for (int r = 0; r < size_; ++r) {
          parts_[r] = {SentOf(call, rank_, r).begin * element + begin, PairBytes(call, rank_, r)};
        }
        GiveSlices(call, call.in);
      },
      [&](int64_t begin, int64_t bytes, uint64_t round) {
        for (int i = 0; i < size_; ++i) {
          const int from = (rank_ + i) % size_;
          const Stretch to = ArrivedOf(call, rank_, from);
          const std::byte* slice =
              i == 0 ? call.in + SentOf(call, rank_, rank_).begin * element + begin
                     : SliceOf(from, round);
          const int64_t count = std::clamp<int64_t>(to.count * element - begin, 0, bytes);
          CopyBytes(call.out + to.begin * element + begin, slice, count);
        }
      });
}

int64_t StagedTransport::PairBytes(const CollectiveCall& call, int from, int to) const {
  if (call.kind != Collective::kAllToAll) return parts_[to].bytes;
  const int64_t all = SentOf(call, from, to).count * SizeOf(call.dtype);
  return std::clamp<int64_t>(all - piece_, 0, slice_bytes_);
}

void StagedTransport::Broadcast(const CollectiveCall& call) {
  InPieces(
      call, call.bytes(), shard_bytes_,
      [&](int64_t begin, int64_t bytes) {
        std::fill(parts_.begin(), parts_.end(), Part{});
        parts_[call.root].bytes = bytes;
        GiveShard(call, call.in + begin);
      },
      [&](int64_t begin, int64_t bytes, uint64_t round) {
        if (rank_ != call.root) CopyBytes(call.out + begin, ShardOf(call.root, round), bytes);
      });
}

// Sums over all ranks. This rank's part is `mine`, and `out` may be `mine`.
void StagedTransport::Sum(const CollectiveCall& call, const std::byte* mine, int64_t count,
                          uint64_t round, std::byte* out) {
  for (int r = 0; r < size_; ++r) sources_[r] = r == rank_ ? mine : SliceOf(r, round);
  SumInOrder(call.dtype, sources_, count, call.result, out,
             PastCaches(call.n * SizeOf(call.result)));
}

}  // namespace fsdp
