// Attention of new tokens of a sequence, one after the other or some at a time (generation). For
// each head of q, with keys and values of its group's head, and p = positions[b, t]:
//   s[j] = scale q[b, t] . key[j] + bias(h, j - p) where token t sees key j
//   out[b, t] = sum_j softmax(s)[j] value[j]
// scale is in.scale, or 1 / sqrt(head_dim). bias(h, x) = table[h, buckets[x + positions - 1]] of
// in.bias, or 0, where buckets are of so many positions: int32 [positions + keys - 1].
//
//   kCausal  Over a cache of the sequence's own keys and values:
//              cache_k[b, p] = k[b, t]     cache_v[b, p] = v[b, t]
//            Token t sees keys 0 to p. All k and v are written before the first is read. q, k and v
//            are of [batch, n, all heads, head_dim]; whoever calls has filled the cache below.
//   kFull    Over keys and values that are there: in.k and in.v are of [batch, keys, all heads,
//            head_dim], of an encoder's output, say. Token t sees keys 0 to lengths[b] of
//            in.lengths, int32 [batch], in [0, keys]; without lengths all. Where it sees none out
//            is 0. There is no cache, and positions are there with a bias alone.
//
// The heads of k divide those of q. cache_k, cache_v: [batch, capacity, heads of k, head_dim],
// which are the keys; out: [batch, n, heads of q, head_dim]; all fp32, bf16 or fp16, of one dtype,
// and so is the table: computed in fp32, rounded once, so out is that of attention.h to rounding,
// to bf16 where that rounds probabilities, which this does not. positions: int32 [batch, n], in [0,
// keys) under kCausal, and below those of the buckets: whoever loads a batch has seen to it
// (data/check_row.h). On the CPU one thread computes a sample's group from beginning to end: no bit
// depends on their number. Beside bf16 and fp16 it holds the group's keys and values and a head's
// queries as floats meanwhile, and beside those a head's row of the table, memory that it keeps,
// outside the plan. On CUDA the number of keys that a query sees and head_dim alone decide about
// the order of sums. Dropout, and lengths under kCausal, are refused.
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_

#include <cstdint>

#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Bytes of the workspace for q of this dtype on this device (never kSim): on the CPU the scores of
// a query over all keys, for each sample's group; on CUDA none. dims.capacity: the keys.
int64_t AttentionCachedWorkspaceBytes(const AttentionCachedDims& dims, DType dtype,
                                      DeviceType device);

// At most 4 batch heads n keys head_dim FLOPs, which is what is counted. Under kFull the caches are
// left out (empty Views).
void AttentionCached(Stream& stream, const AttentionInputs& in, View cache_k, View cache_v,
                     View out, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_
