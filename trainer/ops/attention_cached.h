// Attention of new tokens over a cache of keys and values (generation): what attention.h computes
// for the last tokens of a sequence whose earlier ones have been seen.
//   cache_k[b, positions[b, t]] = k[b, t]     cache_v[b, positions[b, t]] = v[b, t]
//   s[j] = q[b, t] . cache_k[b, j] / sqrt(head_dim), j <= positions[b, t]
//   out[b, t] = sum_j softmax(s)[j] cache_v[b, j]
// for each head of q, with keys and values of its group's head. All k and v are written before the
// first is read.
//
// q, k, v: heads (heads.h) of tensors [batch, n, all heads, head_dim]; the heads of k divide those
// of q. cache_k, cache_v: [batch, capacity, heads of k, head_dim]; out: [batch, n, heads of q,
// head_dim]; all fp32, bf16 or fp16, of one dtype: computed in fp32, rounded once, so out is that
// of attention.h to rounding, to bf16 where that rounds probabilities, which this does not.
// positions: int32 [batch, n], in [0, capacity): whoever loads a batch has seen to it
// (data/check_row.h). Whoever calls has filled the cache below. On the CPU one thread computes a
// sample's group from beginning to end: no bit depends on their number. Beside bf16 and fp16 it
// holds the group's cache and a head's queries as floats meanwhile, memory that it keeps, outside
// the plan. On CUDA a query's position and head_dim alone decide about the order of sums.
// The inputs' q, k, v and positions are all that is looked at; dropout, another mask, lengths, a
// bias and a scale are refused.
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_

#include <cstdint>

#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Bytes of the workspace for q of this dtype on this device (never kSim): on the CPU the scores of
// a query over the cache, for each sample's group; on CUDA none.
int64_t AttentionCachedWorkspaceBytes(const AttentionCachedDims& dims, DType dtype,
                                      DeviceType device);

// At most 4 batch heads n capacity head_dim FLOPs, which is what is counted.
void AttentionCached(Stream& stream, const AttentionInputs& in, View cache_k, View cache_v,
                     View out, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_CACHED_H_
