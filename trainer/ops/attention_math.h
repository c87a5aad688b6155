// Attention (attention.h) as frameworks computed it before kernels fused it: the scores of all
// queries with all keys exist in memory, and their probabilities are kept for backward. Masks,
// lengths, groups, scale, bias and dropout are those of attention.h. Each row is one document:
// positions are not looked at. For each sample and each head h of q:
//   s[i,j] = scale q[i] . k[j]        p[i,j] = softmax over j of s[i,j] + bias(h, j - i)
//   w[i,j] = m[i,j] p[i,j]            out[i] = sum_j w[i,j] v[j]
// where p[i,j] = w[i,j] = 0 if query i does not see key j.
//
// `mixing` is the re-attention of DeepViT (Zhou et al. 2021, arXiv:2103.11886, equation 3): the
// heads of a sample are mixed behind the softmax and normalised over heads (norm.h):
//   u[g,i,j] = sum_h matrix[h,g] m[h,i,j] p[h,i,j]
//   w[g,i,j] = weight[g] (u[g,i,j] - mean_g u) / sqrt(variance_g u + eps) + bias[g]
// where query i sees key j, and 0 elsewhere. At most 64 heads can be mixed.
//
// probabilities p and weights w: [batch, heads, seq, keys], of the dtype of q, overwritten. Without
// dropout and mixing w would be p: `weights` is then left out (an empty View).
//
// Rounding: s, p, w, dw, dp and ds are each rounded to the dtype, where they lie in memory; all
// else is fp32, and each result is rounded once. A score s beyond fp16's largest number, which one
// without a scale may be, counts as that number. On the CPU bf16 and fp16 pass through memory
// that a thread keeps, outside the plan: at most 3 rows of keys, and a head's keys or queries.
//
// Bits depend on dtype, shapes, mask and lengths alone, not on the number of threads.
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_MATH_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_MATH_H_

#include <cstdint>

#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/head_mixing.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Whether weights are a tensor beside the probabilities.
bool AttentionHasWeights(const AttentionDropout& dropout, const HeadMixing& mixing);

// in.backend is kMath, here and below. FLOPs count all pairs of queries and keys, also those that a
// mask hides: for each pair 4 head_dim, 5 for the softmax, with a bias 1 more, with dropout 15
// more, with mixing 2 heads + 8 more. Each kernel reads and writes its whole matrices in memory.
void AttentionMathForward(Stream& stream, const AttentionInputs& in, const HeadMixing& mixing,
                          View probabilities, View weights, View out);

// Bytes of the workspace for q of this dtype on this device (never kSim): batch heads seq keys
// elements, which are dw, then dp, then ds; with a bias 4 batch heads (seq + keys - 1) bytes more;
// with mixing at most 512 heads (heads + 2) bytes more.
int64_t AttentionMathBackwardWorkspaceBytes(const AttentionDims& dims, DType dtype,
                                            DeviceType device, bool mixes);

//   dw[i,j] = dout[i] . v[j]     dv[j] = sum w[i,j] dout[i]     dp = m dw, or through mixing
//   ds[i,j] = p[i,j] (dp[i,j] - sum_j p[i,j] dp[i,j])
//   dq[i] = scale sum_j ds[i,j] k[j]     dk[j] = scale sum ds[i,j] q[i]     dtable: attention.h
// with the sums of attention.h. Overwrites `gradients`. Adds to the gradients of mixing: sums over
// parts of all rows (head_mixing.h), in fp32, which are added when they are complete. FLOPs for
// each pair: 8 head_dim, 5 for the softmax, with dropout 15 more, with a dtable 1 more, with mixing
// 6 heads + 20 more.
void AttentionMathBackward(Stream& stream, const AttentionInputs& in, const HeadMixing& mixing,
                           ConstView probabilities, ConstView weights, ConstView dout,
                           const AttentionGradients& gradients,
                           const HeadMixingGradients& mixing_gradients, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_MATH_H_
