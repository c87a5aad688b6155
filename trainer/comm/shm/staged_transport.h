// The collectives of ranks that hand each other pieces in memory of their host, however a piece
// gets there.
// Tests: tests/trainer/comm/shm_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_SHM_STAGED_TRANSPORT_H_
#define FSDP_TRAIN_TRAINER_COMM_SHM_STAGED_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trainer/comm/cpu_communicator.h"

namespace fsdp {

// Two buffers of each rank of a host, used in turn by rounds. Two are enough: who fills one for
// round k + 2 has passed the meeting that ends round k + 1, at which all had finished reading
// round k.
class Staging {
 public:
  static constexpr int64_t kLine = 64;  // Bytes: slices begin on cache lines.

  // Bytes before the buffers, for a Rendezvous of `ranks` and `more` behind it.
  static int64_t ControlBytes(int ranks, int64_t more = 0);
  static int64_t Bytes(int ranks, int64_t buffer_bytes, int64_t more = 0) {
    return ControlBytes(ranks, more) + ranks * 2 * buffer_bytes;
  }

  // In Bytes() of memory. `slice_bytes`: the bytes that one rank has for one other.
  Staging(std::byte* memory, int ranks, int64_t buffer_bytes, int64_t slice_bytes, int64_t more = 0)
      : buffers_(memory + ControlBytes(ranks, more)),
        ranks_(ranks),
        buffer_bytes_(buffer_bytes),
        slice_bytes_(slice_bytes) {}

  std::byte* Buffer(int owner, uint64_t round) const {
    return buffers_ + (2 * owner + static_cast<int64_t>(round % 2)) * buffer_bytes_;
  }
  // The part of Buffer() for `reader`, another rank.
  std::byte* Slice(int owner, int reader, uint64_t round) const {
    return Buffer(owner, round) + (reader - owner - 1 + ranks_) % ranks_ * slice_bytes_;
  }

 private:
  std::byte* buffers_;
  int ranks_;
  int64_t buffer_bytes_, slice_bytes_;
};

class StagedTransport : public Transport {
 public:
  void Run(const CollectiveCall& call) override;

 protected:
  // The part of a tensor that is meant for a rank, or comes from it.
  struct Part {
    int64_t begin = 0, bytes = 0;
  };

  // `shard_bytes`, `slice_bytes`: the most that one PostShard() and each part of one PostSlices()
  // take. `ahead`: a piece travels, so it is posted before the one in front of it is consumed.
  StagedTransport(int rank, int size, int64_t shard_bytes, int64_t slice_bytes, bool ahead);

  int rank() const { return rank_; }
  int size() const { return size_; }
  uint64_t round() const { return round_; }  // Rounds so far, the same on all ranks.

  // A collective is Begin(), then rounds: something is posted, Settle(), and what others have
  // posted can be read, under the number that the round had.
  virtual void Begin(const CollectiveCall& call) = 0;
  virtual void Settle(const CollectiveCall& call) = 0;
  // Posts parts[rank()].bytes of `shard` for everybody; rank r posts parts[r].bytes.
  virtual void PostShard(const CollectiveCall& call, const std::byte* shard,
                         std::span<const Part> parts) = 0;
  virtual const std::byte* ShardOf(int from, uint64_t round) const = 0;
  // Posts parts[r] of `data` for each other rank r.
  virtual void PostSlices(const CollectiveCall& call, const std::byte* data,
                          std::span<const Part> parts) = 0;
  virtual const std::byte* SliceOf(int from, uint64_t round) const = 0;
  // Bytes that `from` posts for `to` in the PostSlices() that is being made. In an all-to-all they
  // may differ from pair to pair.
  int64_t PairBytes(const CollectiveCall& call, int from, int to) const;

 private:
  template <typename Post, typename Consume>
  void InPieces(const CollectiveCall& call, int64_t n, int64_t most, Post post, Consume consume);
  uint64_t EndRound(const CollectiveCall& call);
  // Post parts_, and count what others copy of it: a part for this rank itself moves nowhere.
  void GiveShard(const CollectiveCall& call, const std::byte* shard);
  void GiveSlices(const CollectiveCall& call, const std::byte* data);
  void AllGather(const CollectiveCall& call);
  void ReduceScatter(const CollectiveCall& call);
  void AllReduce(const CollectiveCall& call);
  void AllToAll(const CollectiveCall& call);
  void Broadcast(const CollectiveCall& call);
  void Sum(const CollectiveCall& call, const std::byte* mine, int64_t count, uint64_t round,
           std::byte* out);

  const int rank_, size_;
  const int64_t shard_bytes_, slice_bytes_;
  const bool ahead_;
  uint64_t round_ = 0;
  std::vector<Part> parts_;  // By rank, of what is posted.
  int64_t piece_ = 0;        // The byte of each slice of an all-to-all at which that begins.
  std::vector<const std::byte*> sources_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_SHM_STAGED_TRANSPORT_H_
