// Collectives over a fixed group of ranks. tests/trainer/comm/communicator_suite.h holds every
// transport to what is said here.
#ifndef FSDP_TRAIN_TRAINER_COMM_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_COMMUNICATOR_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/comm/exchange_layout.h"
#include "trainer/comm/rank_group.h"
#include "trainer/core/view.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Traffic;  // traffic.h
struct Cost;
struct Operation;
struct Range;

enum class Collective : uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kBroadcast };
inline constexpr int kCollectives = 5;

const char* Name(Collective kind);  // "all_gather", ...: also the operation's name on the stream.

// The cost of one rank's part in a collective of `n` elements: n per rank, as in the comments
// below, or the whole tensor for kAllReduce and kBroadcast. Links are priced as rings of size - 1
// rounds, the schedule of least volume: all-gather, reduce-scatter and all-to-all send (size - 1) /
// size of the full tensor, an all-reduce is the first two in turn, a pipelined broadcast forwards
// it once. `result`: dtype of a reduce-scatter's shard.
Cost CollectiveCost(Collective kind, int size, int64_t n, DType dtype, DType result);

struct CommOptions {
  double timeout_s = 600;  // A peer not heard of for longer fails the collective.
  // Polls, about 20 ns each, before a waiting rank sleeps. -1: 2000 where each rank can have a core
  // to itself, otherwise 200. More only where all busy threads of a host have a core each.
  int spins = -1;
};

// One collective of one rank, checked: all that a transport needs to know.
struct CollectiveCall {
  Collective kind = Collective::kAllGather;
  Collective counts_as = kind;     // The kind that its bytes count as.
  DType dtype = DType::kFloat32;   // On the wire.
  DType result = DType::kFloat32;  // The dtype of `out`: another one only for kReduceScatter.
  int root = 0;
  int64_t n = 0;
  uint64_t sequence = 0;  // Counts the calls of this communicator from 0.
  const std::byte* in = nullptr;
  std::byte* out = nullptr;    // The same as `in` for kAllReduce and kBroadcast.
  Traffic* traffic = nullptr;  // Counts this rank's bytes. Null: nobody counts.
  // kAllToAll of uneven counts: the caller's layout, in this rank's memory; n is its total() then.
  // Ranks compare its hash. Null: every count is n.
  const ExchangeLayout* layout = nullptr;
  uint64_t layout_hash = 0;

  int64_t bytes() const { return n * SizeOf(dtype); }
};

template <typename Visit>
void ForEachAddress(CollectiveCall& call, const Visit& visit) {
  visit(call.in);
  visit(call.out);
}

// kAllToAll: the elements that rank `from` has for `to`, in its `in`; and where they lie in `out`
// of `to`.
Stretch SentOf(const CollectiveCall& call, int from, int to);
Stretch ArrivedOf(const CollectiveCall& call, int to, int from);
// The most elements that one rank has for another.
int64_t MostForOne(const CollectiveCall& call);

// Bytes of a rank that the others take in a call: what a transport counts (traffic.h). In an
// all-reduce each rank adds up one slice, and slices are as equal as whole elements allow. Ranks
// give away unequal numbers of bytes where they do not divide the size.
int64_t BytesTaken(const CollectiveCall& call, int rank, int size);

// Collectives, enqueued on the caller's stream like any op. Sum only: a caller scales. CPU
// transports sum in fp32, in rank order over the whole group, and round once to the result's dtype
// (an fp32 result of a reduce-scatter not at all), so all of them give the same bits.
//   Order    All ranks make the same calls, in the same order, with the same n and dtype. The calls
//            of one communicator go to one stream, or to streams that events order.
//   Units    Elements, never bytes: n per rank, size() * n in a full tensor. n = 0 is a call too.
//   Aliases  In place where said; any other overlap is an error.
//   Errors   Views that disagree: std::invalid_argument, nothing enqueued. Ranks that disagree, a
//            dead peer or a timeout fail the stream with CommError, on every rank; the group is
//            then beyond repair: destroy it.
//   Threads  One thread calls at a time, except Abort().
class Communicator {
 public:
  // Aborts what is in flight, here and, as this rank has left, on the peers. Never throws or hangs.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }  // In [0, size()).
  int size() const { return size_; }
  const RankGroup& group() const { return group_; }  // By their numbers in the job.

  // full[r * n + i] = shard[i] of rank r. In place if `shard` is slice rank() of `full`.
  // `counts_as`, here and below: the collective that the bytes of this one count as.
  void AllGather(Stream& stream, ConstView shard, View full,
                 Collective counts_as = Collective::kAllGather);
  // shard[i] = sum over ranks of full[rank() * n + i]. `full` travels, in fp32, bf16 or fp16.
  // `shard` has that dtype, and may be in place as above, or is fp32 and apart from `full`. Where
  // the dtypes differ, a communicator may overwrite `full`.
  void ReduceScatter(Stream& stream, View full, View shard);
  // data[i] = sum over ranks of data[i], in place. fp32, bf16 or fp16.
  void AllReduce(Stream& stream, View data);
  // out[r * n + i] = in[rank() * n + i] of rank r. Never in place.
  void AllToAll(Stream& stream, ConstView in, View out,
                Collective counts_as = Collective::kAllToAll);
  // The same with counts of the layout's, which must be for size() ranks and outlive the call.
  // Where it says so, a stretch of `in` goes to several ranks, and there may be more of `in` and
  // `out` than the layout asks for: that is not read, and keeps its contents. Never in place.
  void Exchange(Stream& stream, const ExchangeLayout& layout, ConstView in, View out);
  // data[i] = data[i] of rank `root`, in place.
  void Broadcast(Stream& stream, View data, int root);

  // Tries the largest calls that will come, so that a transport makes connections and takes memory
  // before a run measures what is free, and not at the first call of a kind and size. The memory
  // tried on is the device's, and is given back. All ranks call Try() alike, before any collective,
  // and meet behind it. Blocks. Throws CommError, MemoryError.
  struct Size {
    Collective kind = Collective::kAllGather;
    DType dtype = DType::kFloat32, result = DType::kFloat32;  // As in CollectiveCall.
    int64_t n = 0;
    // kAllToAll: an Exchange() by this layout, which outlives Try(); n is not read. Null:
    // AllToAll().
    const ExchangeLayout* layout = nullptr;

    bool operator==(const Size&) const = default;
  };
  virtual void Try(Device& device, const std::vector<Size>& sizes) {
    (void)device;
    (void)sizes;
  }
  // Calls in flight and all later ones fail with CommError, here and on the peers; `why` is in its
  // message. A collective for which all ranks have arrived already may still complete. From any
  // thread, at any time; the first reason counts.
  virtual void Abort(const std::string& why) = 0;

  // Calls issued from now on count in `traffic` the bytes that others take of this rank, when these
  // move. Null: nobody counts. `traffic` outlives those calls.
  void CountIn(Traffic* traffic) { traffic_ = traffic; }

  // Sum of BytesTaken() of all calls so far that count as this kind.
  int64_t bytes_given(Collective kind) const { return bytes_given_[static_cast<int>(kind)]; }

 protected:
  // `device`: the type of device whose memory the tensors are in. Host work of any device reaches
  // the host's memory.
  Communicator(const RankGroup& group, DeviceType device);

 private:
  virtual void Enqueue(Stream& stream, Operation operation, const CollectiveCall& call) = 0;
  void Submit(Stream& stream, CollectiveCall call, std::vector<Range> reads,
              std::vector<Range> writes);
  void CheckStream(const char* name, Stream& stream) const;

  const RankGroup group_;
  const int rank_;
  const int size_;
  const DeviceType device_;
  uint64_t calls_ = 0;
  Traffic* traffic_ = nullptr;
  std::array<int64_t, kCollectives> bytes_given_{};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_COMMUNICATOR_H_
