// Flat parameters that travel in blocks that share a scale: which elements travel, and in what
// order (ZeRO++, Wang et al. 2023, arXiv:2306.10209). Matrices of at least min_size elements are
// quantised, the rest travels as it is. Blocks are counted from a parameter's first element, and no
// shard or part of a shard cuts one (layout.h): they are the same however parameters are wrapped,
// frozen and sharded.
//
// Gathers of weights (qwZ, section 3.1): a shard travels in the flat parameter's `compute`.
//
// Reductions of gradients (qgZ, section 3.3):
//   A rank's gradient is quantised and goes, in an all-to-all, to the ranks of its host. The rank
//   of index l on the host sums the shards of all ranks of index l, in fp32 and in the order of
//   ranks. Sums of hosts are quantised again and go, in a second all-to-all, to the ranks of these
//   shards, which sum again. A copy's sum is thus rounded twice, however many ranks there are, and
//   once with one hop. Between copies each rank sums a part of the shard and gives it, quantised,
//   to all others and itself: copies have the same bits.
// Tests: tests/trainer/engine/quantized_reduce_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_COLLECTIVES_H_
#define FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_COLLECTIVES_H_

#include <cstdint>
#include <vector>

#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/options.h"
#include "trainer/ops/quantized_layout.h"

namespace fsdp {

struct QuantizedGather {
  QuantizedLayout own, all;  // This rank's shard; and every rank's, one behind the other.
};

// `shard`: this rank's. `quantize.gather` is not kNone.
QuantizedGather LayOutGather(const FlatParameter& flat, int shard,
                             const FsdpOptions::Quantize& quantize);

// Bytes of the quantised value over all ranks; 0 where the flat parameter travels as it is.
int64_t QuantizedBytes(const FlatParameter& flat, const FsdpOptions::Quantize& quantize);

// Whether any of the flat parameter's gradient is quantised. False with one shard.
bool ReducesQuantized(const FlatParameter& flat, const FsdpOptions::Quantize& quantize);

// Layouts for the hops between the ranks that share a copy, `inside` of them on a host:
struct QuantizedReduce {
  QuantizedLayout sent;    // The whole gradient, as the first hop sends it.
  QuantizedLayout inside;  // The first hop's sums: a shard for each host.
  QuantizedLayout own;     // This rank's shard.
};
QuantizedReduce LayOutReduce(const FlatParameter& flat, int shard, int inside,
                             const FsdpOptions::Quantize& quantize);
int64_t QuantizedReduceBytes(const FlatParameter& flat,
                             const FsdpOptions::Quantize& quantize);  // Bytes of `sent`.

// Layouts for the exchange between `replicas` copies:
struct QuantizedReplicas {
  QuantizedLayout shard;  // All of the shard, a part for each copy.
  QuantizedLayout own;    // The part that this copy's rank sums.
  int64_t begin = 0;      // Its first element in the shard.
};
QuantizedReplicas LayOutReplicas(const FlatParameter& flat, int shard, int replica, int replicas,
                                 const FsdpOptions::Quantize& quantize);
// Bytes of QuantizedReplicas::shard, the same for all shards.
int64_t QuantizedReplicaBytes(const FlatParameter& flat, int replicas,
                              const FsdpOptions::Quantize& quantize);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_COLLECTIVES_H_
