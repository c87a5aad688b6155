// Causal multi-head attention (Vaswani et al. 2017, arXiv:1706.03762), over tiles of queries and
// keys with a running maximum and sum, so that no [seq, seq] matrix ever exists (Dao 2023,
// arXiv:2307.08691, algorithms 1 and 2). For each sample and head, with q, k, v: [seq, head_dim]:
//   s[i,j] = q[i] . k[j] / sqrt(head_dim), j <= i        lse[i] = log sum_j exp(s[i,j])
//   p[i,j] = exp(s[i,j] - lse[i])                        out[i] = sum_j p[i,j] v[j]
// qkv, dqkv: [batch, seq, 3, heads, head_dim], the layout of GPT-2's c_attn; out, dout:
// [batch, seq, heads, head_dim]; lse: [batch, heads, seq]; all fp32. head_dim <= 256; batch and seq
// may be anything. Backward needs qkv, out and lse.
// One thread computes a sample's head from beginning to end: no result depends on the number of
// threads. No workspace; on the stack of a compute thread up to 9 tiles of 48 x head_dim floats.
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_

#include "trainer/runtime/stream.h"

namespace fsdp {

inline constexpr int64_t kMaxHeadDim = 256;

// 2 batch heads seq (seq + 1) head_dim FLOPs: what lies above the diagonal does not count.
void AttentionForward(Stream& stream, ConstView qkv, View out, View lse);

//   dp[i,j] = dout[i] . v[j]     ds[i,j] = p[i,j] (dp[i,j] - dout[i] . out[i])
//   dv[j] = sum_i p[i,j] dout[i]
//   dq[i] = sum_j ds[i,j] k[j] / sqrt(head_dim)     dk[j] = sum_i ds[i,j] q[i] / sqrt(head_dim)
// Overwrites dqkv, which is apart from all others. 5 batch heads seq (seq + 1) head_dim FLOPs, a
// fifth of them for p a second time.
void AttentionBackward(Stream& stream, ConstView qkv, ConstView out, ConstView lse, ConstView dout,
                       View dqkv);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_
