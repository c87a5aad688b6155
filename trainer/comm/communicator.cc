#include "trainer/comm/communicator.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

[[noreturn]] void Reject(const char* name, const std::string& message) {
  throw std::invalid_argument("[" + std::string(name) + "] " + message);
}

bool Overlap(const Range& a, const Range& b) {
  return a.bytes > 0 && b.bytes > 0 && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

bool Sums(Collective kind) {
  return kind == Collective::kReduceScatter || kind == Collective::kAllReduce;
}

void CheckSummable(const char* name, DType dtype) {
  if (dtype != DType::kFloat32 && dtype != DType::kBFloat16 && dtype != DType::kFloat16) {
    Reject(name, "cannot sum " + std::string(Name(dtype)) + ", want fp32, bf16 or fp16");
  }
}

void CheckTypes(const char* name, DType a, DType b) {
  if (a != b) {
    Reject(name,
           "dtypes differ: in is " + std::string(Name(a)) + ", out is " + std::string(Name(b)));
  }
}

// An uneven all-to-all takes as long as the busier direction of this rank's link.
Cost CostOf(const CollectiveCall& call, int rank, int size) {
  if (!call.layout) return CollectiveCost(call.kind, size, call.n, call.dtype, call.result);
  const ExchangeLayout& layout = *call.layout;
  const auto bytes = [&](int64_t n) { return static_cast<double>(n * SizeOf(call.dtype)); };
  const int64_t own = layout.Sent(rank, rank).count;
  Cost cost;
  cost.bytes_read = bytes(layout.ToOthers(rank) + own);
  cost.bytes_written = bytes(layout.FromOthers(rank) + own);
  cost.link_bytes = bytes(std::max(layout.ToOthers(rank), layout.FromOthers(rank)));
  cost.link_messages = size - 1;
  return cost;
}

// `full` must hold size * n elements, and `shard` be apart from it or, of one dtype, its slice
// `rank`. True if in place.
bool CheckShard(const char* name, const ConstView& shard, const ConstView& full, int rank,
                int size) {
  const int64_t n = shard.NumElements();
  if (full.NumElements() != n * size) {
    Reject(name, "full has " + std::to_string(full.NumElements()) +
                     " elements, want size() * n = " + std::to_string(size) + " * " +
                     std::to_string(n));
  }
  if (!Overlap(shard, full)) return false;
  if (shard.dtype != full.dtype) Reject(name, "in place shard and full have one dtype");
  const std::byte* slice = full.data + rank * shard.bytes();
  if (shard.data != slice) {
    Reject(name, "shard overlaps full at byte " + std::to_string(shard.data - full.data) +
                     ", in place it must lie at rank() * n = byte " +
                     std::to_string(slice - full.data));
  }
  return true;
}

}  // namespace

const char* Name(Collective kind) {
  switch (kind) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
  }
  FSDP_CHECK(false) << "collective " << static_cast<int>(kind);
}

Cost CollectiveCost(Collective kind, int size, int64_t n, DType dtype, DType result) {
  const double bytes = static_cast<double>(n) * static_cast<double>(SizeOf(dtype));
  const double others = size - 1;
  Cost cost;
  switch (kind) {
    case Collective::kAllGather:
      cost.bytes_read = bytes;
      cost.bytes_written = bytes * size;
      cost.link_bytes = bytes * others;
      break;
    case Collective::kReduceScatter:
      cost.bytes_read = bytes * size;
      cost.bytes_written = static_cast<double>(n) * static_cast<double>(SizeOf(result));
      cost.link_bytes = bytes * others;
      break;
    case Collective::kAllReduce:
      cost.bytes_read = cost.bytes_written = bytes;
      cost.link_bytes = 2 * bytes * others / size;
      break;
    case Collective::kAllToAll:
      cost.bytes_read = cost.bytes_written = bytes * size;
      cost.link_bytes = bytes * others;
      break;
    case Collective::kBroadcast:
      cost.bytes_read = cost.bytes_written = bytes;
      cost.link_bytes = size > 1 ? bytes : 0;
      break;
  }
  // Each rank adds up one slice: n elements of it in a reduce-scatter, n / size in an all-reduce.
  if (Sums(kind)) {
    const double slice = static_cast<double>(n) / (kind == Collective::kAllReduce ? size : 1);
    cost.flops = slice * others;
  }
  cost.link_messages = (kind == Collective::kAllReduce ? 2 : 1) * (size - 1);
  return cost;
}

Stretch SentOf(const CollectiveCall& call, int from, int to) {
  return call.layout ? call.layout->Sent(from, to) : Stretch{to * call.n, call.n};
}

Stretch ArrivedOf(const CollectiveCall& call, int to, int from) {
  return call.layout ? call.layout->Arrived(to, from) : Stretch{from * call.n, call.n};
}

int64_t MostForOne(const CollectiveCall& call) {
  return call.layout ? call.layout->most() : call.n;
}

int64_t BytesTaken(const CollectiveCall& call, int rank, int size) {
  if (call.layout) return call.layout->ToOthers(rank) * SizeOf(call.dtype);
  const int64_t others = size - 1;
  int64_t elements = others * call.n;
  if (call.kind == Collective::kBroadcast && rank != call.root) elements = 0;
  if (call.kind == Collective::kAllReduce) {  // The sum of one slice, a part of the others.
    const int64_t slice = call.n * (rank + 1) / size - call.n * rank / size;
    elements = call.n - slice + others * slice;
  }
  return elements * SizeOf(call.dtype);
}

Communicator::Communicator(const RankGroup& group, DeviceType device)
    : group_(group), rank_(group.rank()), size_(group.size()), device_(device) {}

void Communicator::AllGather(Stream& stream, ConstView shard, View full, Collective counts_as) {
  const char* name = Name(Collective::kAllGather);
  CheckStream(name, stream);
  CheckTypes(name, shard.dtype, full.dtype);
  const bool in_place = CheckShard(name, shard, full, rank_, size_);
  CollectiveCall call;
  call.kind = Collective::kAllGather;
  call.counts_as = counts_as;
  call.dtype = call.result = shard.dtype;
  call.n = shard.NumElements();
  call.in = shard.data;
  call.out = full.data;
  Submit(stream, call, in_place ? std::vector<Range>{} : std::vector<Range>{shard}, {full});
}

void Communicator::ReduceScatter(Stream& stream, View full, View shard) {
  const char* name = Name(Collective::kReduceScatter);
  CheckStream(name, stream);
  if (shard.dtype != DType::kFloat32) CheckTypes(name, full.dtype, shard.dtype);
  CheckSummable(name, full.dtype);
  std::vector<Range> reads = {full};
  if (CheckShard(name, shard, full, rank_, size_)) {  // Read: what lies around the slice.
    reads = {Range(full.data, rank_ * shard.bytes()),
             Range(shard.data + shard.bytes(), (size_ - 1 - rank_) * shard.bytes())};
  }
  CollectiveCall call;
  call.kind = call.counts_as = Collective::kReduceScatter;
  call.dtype = full.dtype;
  call.result = shard.dtype;
  call.n = shard.NumElements();
  call.in = full.data;
  call.out = shard.data;
  Submit(stream, call, std::move(reads), {shard});
}

void Communicator::AllReduce(Stream& stream, View data) {
  const char* name = Name(Collective::kAllReduce);
  CheckStream(name, stream);
  CheckSummable(name, data.dtype);
  CollectiveCall call;
  call.kind = call.counts_as = Collective::kAllReduce;
  call.dtype = call.result = data.dtype;
  call.n = data.NumElements();
  call.in = call.out = data.data;
  Submit(stream, call, {}, {data});
}

void Communicator::AllToAll(Stream& stream, ConstView in, View out, Collective counts_as) {
  const char* name = Name(Collective::kAllToAll);
  CheckStream(name, stream);
  CheckTypes(name, in.dtype, out.dtype);
  if (in.NumElements() != out.NumElements() || in.NumElements() % size_ != 0) {
    Reject(name, "in has " + std::to_string(in.NumElements()) + " elements and out " +
                     std::to_string(out.NumElements()) +
                     ", want size() * n = " + std::to_string(size_) + " * n in both");
  }
  if (Overlap(in, out)) Reject(name, "in and out overlap");
  CollectiveCall call;
  call.kind = Collective::kAllToAll;
  call.counts_as = counts_as;
  call.dtype = call.result = in.dtype;
  call.n = in.NumElements() / size_;
  call.in = in.data;
  call.out = out.data;
  Submit(stream, call, {in}, {out});
}

void Communicator::Exchange(Stream& stream, const ExchangeLayout& layout, ConstView in, View out) {
  const char* name = Name(Collective::kAllToAll);
  CheckStream(name, stream);
  CheckTypes(name, in.dtype, out.dtype);
  if (layout.size() != size_) {
    Reject(name, "the layout is for " + std::to_string(layout.size()) +
                     " ranks, want size() = " + std::to_string(size_));
  }
  const int64_t sent = layout.InElements(rank_), arrives = layout.OutElements(rank_);
  if (in.NumElements() < sent || out.NumElements() < arrives) {
    Reject(name, "in has " + std::to_string(in.NumElements()) + " elements and out " +
                     std::to_string(out.NumElements()) + ", the layout wants " +
                     std::to_string(sent) + " and " + std::to_string(arrives));
  }
  if (Overlap(in, out)) Reject(name, "in and out overlap");
  CollectiveCall call;
  call.kind = call.counts_as = Collective::kAllToAll;
  call.dtype = call.result = in.dtype;
  call.n = layout.total();
  call.layout = &layout;
  call.layout_hash = layout.hash();
  call.in = in.data;
  call.out = out.data;
  const int64_t element = SizeOf(in.dtype);
  Submit(stream, call, {Range(in.data, sent * element)}, {Range(out.data, arrives * element)});
}

void Communicator::Broadcast(Stream& stream, View data, int root) {
  const char* name = Name(Collective::kBroadcast);
  CheckStream(name, stream);
  if (root < 0 || root >= size_) {
    Reject(name, "root is " + std::to_string(root) + ", want 0 <= root < " + std::to_string(size_));
  }
  CollectiveCall call;
  call.kind = call.counts_as = Collective::kBroadcast;
  call.dtype = call.result = data.dtype;
  call.root = root;
  call.n = data.NumElements();
  call.in = call.out = data.data;
  if (rank_ == root) {
    Submit(stream, call, {data}, {});
  } else {
    Submit(stream, call, {}, {data});
  }
}

void Communicator::CheckStream(const char* name, Stream& stream) const {
  const DeviceType type = stream.device().type();
  if (type != device_ && !(device_ == DeviceType::kCpu && type == DeviceType::kCuda)) {
    Reject(name, "stream " + stream.name() + " is of another kind of device than the communicator");
  }
}

void Communicator::Submit(Stream& stream, CollectiveCall call, std::vector<Range> reads,
                          std::vector<Range> writes) {
  Operation operation;
  operation.name = Name(call.kind);
  operation.reads = std::move(reads);
  operation.writes = std::move(writes);
  operation.costs = {{KernelKind::kLink, CostOf(call, rank_, size_)}};
  bytes_given_[static_cast<int>(call.counts_as)] += BytesTaken(call, rank_, size_);
  call.sequence = calls_++;
  call.traffic = traffic_;
  Enqueue(stream, std::move(operation), call);
}

}  // namespace fsdp
