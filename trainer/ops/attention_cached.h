// Attention of new tokens of a sequence during generation, one or several at a time. For each head
// of q, with keys and values of its group's head, and p = positions[b, t]:
//   s[j] = scale q[b, t] . key[j] + bias(h, j - p) where token t sees key j
//   out[b, t] = sum_j softmax(s)[j] value[j]
// scale is in.scale, or 1 / sqrt(head_dim). bias(h, x) = table[h, buckets[x + P - 1]] of in.bias,
// or 0, where buckets are int32 [P + keys - 1], and P is the number of positions that they cover.
//
//   kCausal  Over a cache of the sequence's own keys and values:
//              cache_k[b, p] = k[b, t]     cache_v[b, p] = v[b, t]
//            Token t sees keys 0 to p. All k and v are written before the first is read. q, k and v
//            have the shape [batch, n, all heads, head_dim]. The caller has filled the cache below
//            p.
//   kFull    Over given keys and values, such as an encoder's output: in.k and in.v have the shape
//            [batch, keys, all heads, head_dim]. Token t sees the first lengths[b] keys, where
//            in.lengths is int32 [batch], in [0, keys]; without lengths all. Where it sees none,
//            out is 0. There is no cache, and positions are given with a bias alone.
//
// The number of heads of k divides that of q. cache_k, cache_v: [batch, capacity, heads of k,
// head_dim]; the capacity is the number of keys. out: [batch, n, heads of q, head_dim]. All of
// these and the table are fp32, bf16 or fp16, of one dtype. positions: int32 [batch, n], in [0,
// keys) under kCausal, and below P. The loader of a batch has checked that (data/check_row.h). All
// is computed in fp32 and rounded once: out is that of attention.h to rounding, but attention.h
// rounds probabilities to bf16, which this op does not. On the CPU one thread computes a sample's
// group from beginning to end, so no bit depends on the number of threads. For bf16 and fp16 the
// thread keeps memory outside the plan: the group's keys and values, a head's queries and a head's
// row of the table, as floats. On CUDA the number of keys that a query sees and head_dim alone
// decide the order of sums. Dropout is refused, and so are lengths under kCausal.
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_

#include <cstdint>

#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Bytes of the workspace for q of this dtype on this device (never kSim). On the CPU: the scores of
// one query over all keys, for each sample's group. On CUDA: none. dims.capacity: the keys.
int64_t AttentionCachedWorkspaceBytes(const AttentionCachedDims& dims, DType dtype,
                                      DeviceType device);

// Counts 4 batch heads n keys head_dim FLOPs, which is the most that it computes. Under kFull the
// caches are left out (empty Views).
void AttentionCached(Stream& stream, const AttentionInputs& in, View cache_k, View cache_v,
                     View out, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_
