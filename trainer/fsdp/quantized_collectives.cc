#include "trainer/fsdp/quantized_collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

using Gather = FsdpOptions::Quantize::Gather;
using Reduce = FsdpOptions::Quantize::Reduce;

// The pieces of elements [begin, end) of the flat parameter.
std::vector<QuantizedPiece> QuantizedPieces(const FlatParameter& flat, int64_t begin, int64_t end,
                                            int64_t min_size) {
  std::vector<QuantizedPiece> pieces;
  for (const Piece& piece : PiecesBetween(flat, begin, end)) {
    const Placement& parameter = *piece.parameter;
    const bool quantized = parameter.shape.rank() > 1 && parameter.size() >= min_size;
    pieces.push_back({piece.at, piece.at + piece.count, piece.begin, quantized});
  }
  return pieces;
}

std::vector<QuantizedPiece> ShardPieces(const FlatParameter& flat, int shard, int64_t min_size) {
  const int64_t begin = flat.ShardBegin(shard);
  return QuantizedPieces(flat, begin, begin + flat.shard_size, min_size);
}

QuantizedOptions GatherOptions(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  return {quantize.gather == Gather::kInt8 ? QuantizedForm::kInt8 : QuantizedForm::kFp8,
          static_cast<int>(quantize.block), flat.dtypes.compute};
}

QuantizedLayout LayOutAll(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  std::vector<std::vector<QuantizedPiece>> shards;
  for (int64_t s = 0; s * flat.shard_size < flat.size; ++s) {
    shards.push_back(ShardPieces(flat, static_cast<int>(s), quantize.min_size));
  }
  return LayOutQuantizedShards(shards, flat.shard_size, GatherOptions(flat, quantize));
}

QuantizedOptions ReduceOptions(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  return {quantize.reduce == Reduce::kInt8 ? QuantizedForm::kInt8 : QuantizedForm::kInt4,
          static_cast<int>(quantize.block), flat.dtypes.reduce};
}

int ShardsOf(const FlatParameter& flat) { return static_cast<int>(flat.size / flat.shard_size); }

// Elements [from, to) of a shard, which lie from `begin` on in a tensor.
QuantizedPart PartOf(const FlatParameter& flat, int shard, int64_t from, int64_t to, int64_t begin,
                     const FsdpOptions::Quantize& quantize) {
  const int64_t first = flat.ShardBegin(shard);
  return {begin, to - from, QuantizedPieces(flat, first + from, first + to, quantize.min_size)};
}

// A whole shard, which is the `index`-th of a tensor.
QuantizedPart ShardOf(const FlatParameter& flat, int shard, int index,
                      const FsdpOptions::Quantize& quantize) {
  return PartOf(flat, shard, 0, flat.shard_size, index * flat.shard_size, quantize);
}

// Where copy `replica` begins to sum: parts are as equal as whole blocks of any size allow.
int64_t ReplicaBegin(const FlatParameter& flat, int replica, int replicas) {
  return flat.shard_size / kShardAlignment * replica / replicas * kShardAlignment;
}

QuantizedPart ReplicaPart(const FlatParameter& flat, int shard, int replica, int replicas,
                          const FsdpOptions::Quantize& quantize) {
  const int64_t from = ReplicaBegin(flat, replica, replicas);
  return PartOf(flat, shard, from, ReplicaBegin(flat, replica + 1, replicas), from, quantize);
}

// Every rank's part, in any copy.
int64_t ReplicaStride(const FlatParameter& flat, int replicas,
                      const FsdpOptions::Quantize& quantize) {
  int64_t largest = 0;
  for (int s = 0; s < ShardsOf(flat); ++s) {
    for (int r = 0; r < replicas; ++r) {
      const QuantizedPart part = ReplicaPart(flat, s, r, replicas, quantize);
      const QuantizedLayout layout =
          LayOutQuantized(part.pieces, part.n, ReduceOptions(flat, quantize));
      largest = std::max(largest, layout.sizes.bytes);
    }
  }
  return largest;
}

// Shards in the order of the ranks of a host, and for each of those in the order of hosts.
QuantizedLayout LayOutSent(const FlatParameter& flat, int inside,
                           const FsdpOptions::Quantize& quantize) {
  std::vector<QuantizedPart> parts;
  for (int index = 0; index < inside; ++index) {
    for (int s = index; s < ShardsOf(flat); s += inside) {
      parts.push_back(ShardOf(flat, s, s, quantize));
    }
  }
  return LayOutQuantizedParts(parts, ReduceOptions(flat, quantize));
}

}  // namespace

QuantizedGather LayOutGather(const FlatParameter& flat, int shard,
                             const FsdpOptions::Quantize& quantize) {
  QuantizedLayout all = LayOutAll(flat, quantize);
  const int64_t stride = all.sizes.bytes / (flat.size / flat.shard_size);
  return {LayOutQuantized(ShardPieces(flat, shard, quantize.min_size), flat.shard_size,
                          GatherOptions(flat, quantize), stride),
          std::move(all)};
}

int64_t QuantizedBytes(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  if (!flat.dtypes.quantized || quantize.gather == Gather::kNone) return 0;
  const QuantizedSizes sizes = LayOutAll(flat, quantize).sizes;
  return sizes.quantized > 0 ? sizes.bytes : 0;
}

bool ReducesQuantized(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  if (!flat.dtypes.quantized || quantize.reduce == Reduce::kNone || flat.frozen) return false;
  if (flat.size == flat.shard_size) return false;
  return std::ranges::any_of(QuantizedPieces(flat, 0, flat.size, quantize.min_size),
                             &QuantizedPiece::quantized);
}

QuantizedReduce LayOutReduce(const FlatParameter& flat, int shard, int inside,
                             const FsdpOptions::Quantize& quantize) {
  const QuantizedOptions options = ReduceOptions(flat, quantize);
  QuantizedReduce reduce{.sent = LayOutSent(flat, inside, quantize), .inside = {}, .own = {}};
  const int64_t stride = reduce.sent.sizes.bytes / ShardsOf(flat);
  std::vector<QuantizedPart> parts;
  for (int s = shard % inside; s < ShardsOf(flat); s += inside) {
    parts.push_back(ShardOf(flat, s, s / inside, quantize));
  }
  reduce.inside = LayOutQuantizedParts(parts, options, stride);
  reduce.own = LayOutQuantizedParts({ShardOf(flat, shard, 0, quantize)}, options, stride);
  return reduce;
}

int64_t QuantizedReduceBytes(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  return LayOutSent(flat, ShardsOf(flat), quantize).sizes.bytes;
}

QuantizedReplicas LayOutReplicas(const FlatParameter& flat, int shard, int replica, int replicas,
                                 const FsdpOptions::Quantize& quantize) {
  const QuantizedOptions options = ReduceOptions(flat, quantize);
  const int64_t stride = ReplicaStride(flat, replicas, quantize);
  std::vector<QuantizedPart> parts;
  for (int r = 0; r < replicas; ++r) {
    parts.push_back(ReplicaPart(flat, shard, r, replicas, quantize));
  }
  QuantizedPart own = parts[replica];
  const int64_t begin = std::exchange(own.begin, 0);
  return {LayOutQuantizedParts(parts, options, stride),
          LayOutQuantizedParts({own}, options, stride), begin};
}

int64_t QuantizedReplicaBytes(const FlatParameter& flat, int replicas,
                              const FsdpOptions::Quantize& quantize) {
  return replicas * ReplicaStride(flat, replicas, quantize);
}

}  // namespace fsdp
