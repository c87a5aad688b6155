// Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762), causal or full, inside documents,
// with one head of keys and values for a group of queries' (Ainslie et al. 2023, arXiv:2305.13245),
// over tiles of queries and keys with a running maximum and sum, so that no [seq, keys] matrix ever
// exists (Dao 2023, arXiv:2307.08691, algorithms 1 and 2). For each sample and each head h of q,
// [seq, head_dim], with k and v of head h / (heads of q / heads of k), [keys, head_dim]:
//   s[i,j] = scale q[i] . k[j] + bias(h, j - i) where query i sees key j
//   lse[i] = log sum_j exp(s[i,j])     p[i,j] = exp(s[i,j] - lse[i])     out[i] = sum_j p[i,j] v[j]
// scale is in.scale, or 1 / sqrt(head_dim). bias(h, x) = table[h, buckets[x + seq - 1]] of in.bias,
// or 0: relative positions as Raffel et al. have them (2020, arXiv:1910.10683, section 2.1), or any
// other function of the distance.
//
// Masks: query i begins its document at start(i) = i - positions[i].
//   kCausal  Query i sees keys start(i) to i; keys = seq.
//   kFull    Query i sees all keys of its document; keys = seq. Without positions: all keys, of any
//            number.
// With in.lengths, int32 [batch], in [0, keys], query i of sample b sees none of the keys from
// lengths[b] on, whatever they hold; their gradients are 0. A query that sees no key has out = 0,
// lse = 0 and no gradients.
//
// With dropout, which acts on the probabilities as GPT-2 has it, p[i,j] in out is p[i,j] m[i,j],
// where of sample b
//   m[i,j] = 1 / (1 - rate) where Philox({j / 4, i, site, 1 + h}, key[b])[j % 4] >= rate 2^32,
// else 0 (trainer/core/philox.h); lse is as without. So no bit of m depends on ranks, micro-batches
// or recomputation. The last word of the counter is never 0: these numbers are none of Dropout()'s.
//
// q, k, v and their gradients are heads of tensors (heads.h), of one tensor or of several: GPT-2's
// c_attn gives [batch, seq, 3 heads, head_dim]. Tensors of k and v have keys in place of seq. The
// heads of k divide those of q; v has those of k. out, dout: [batch, seq, heads of q, head_dim].
// All of these are fp32, bf16 or fp16, of one dtype; lse: [batch, heads of q, seq], fp32. head_dim
// <= 256; batch, seq and keys may be anything. positions: int32 [batch, seq], 0 at a row's begin,
// and from there one more from token to token or 0 again: whoever loads a batch has seen to it
// (data/check_row.h). table: [heads of q, buckets], of the dtype of q. buckets: int32 [seq + keys -
// 1], each in [0, number of buckets): whoever makes them sees to it.
//
// Rounding: all is computed in fp32, and each result is rounded once; backward reads `out` as it
// was rounded. Only what a product of two bf16 reads of m, p and ds is rounded to bf16: forward m
// exp(s - max), where max is that of the keys up to the end of a tile; backward m p, whose p =
// exp(s - lse), and ds. All else is fp32: s, which is scaled behind its product, the maxima, the
// sums, in which nothing is rounded, lse, p in ds, dout . out. On CUDA products of fp16 are the
// same, in fp16: there ds has its range, and a loss scale is to keep it in there. On the CPU fp16
// is converted exactly, and is fp32 from there on.
//
// Bits: on the CPU none depends on the number of threads or the instruction set: one thread
// computes a sample's head from beginning to end, in backward all of a group one after the other.
// On CUDA dtype, shapes, mask, positions and lengths alone decide about the order of sums; that of
// the 16 terms which tensor cores add at once is theirs. Tiles that no query sees are left out.
//
// With in.backend a CUDA device has cuDNN's kernels for the calls that they are for: causal ones of
// whole rows, and full ones over keys of any number, with any scale, without lengths, a bias and
// dropout. No GPU has run the full ones yet, nor another scale than the default: a fake of cuDNN
// has, and the real one makes plans of them. There the order of sums is cuDNN's, and what products
// read is rounded as said above, but p and not m exp(s - max); dk and dv of each head of q are
// rounded before a group's are added up. Backward needs q, k, v, out and lse. With dropout there is
// nothing more to save: m is drawn again.
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_

#include <cstdint>

#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Bytes of the workspaces for q of this dtype on this device (never kSim). CUDA needs one in
// backward alone, for dout . out: 4 batch heads seq; with a bias 4 batch heads (seq + keys - 1)
// more, for its gradient by distance. A CPU needs one with a bias alone: 4 heads (seq + keys - 1),
// the bias by distance, and in backward batch times that more. What it makes of a tile of
// queries, dout . out among it, it makes once and uses up at once, in up to 9 tiles of 48 x
// head_dim floats on the stack of a compute thread; dk and dv of fp32 add up in place. For bf16 and
// fp16 a compute thread has memory outside the plan and keeps it: for bf16 k and v as products read
// them, 4 keys head_dim bytes forward and 14 backward, the sums for dk and dv among them (without
// AVX512_BF16 8 and 20); for fp16 a head's rows as floats, 16 and 32, of the longer of seq and
// keys. `backend`: that of the inputs. What cuDNN gets: cudnn/attention_workspace.h.
int64_t AttentionForwardWorkspaceBytes(const AttentionDims& dims, DType dtype, DeviceType device,
                                       AttentionBackend backend = AttentionBackend::kOwn);
int64_t AttentionBackwardWorkspaceBytes(const AttentionDims& dims, DType dtype, DeviceType device,
                                        AttentionBackend backend = AttentionBackend::kOwn);

// 4 head_dim FLOPs for each of the batch heads seq (seq + 1) / 2 probabilities under a causal mask:
// what lies above the diagonal does not count, what lies outside a document or behind a length
// does. Under a full one they are batch heads seq keys. With dropout 15 for each probability more,
// with a bias 1.
void AttentionForward(Stream& stream, const AttentionInputs& in, View out, View lse,
                      View workspace);

//   dp[i,j] = m[i,j] dout[i] . v[j]     ds[i,j] = p[i,j] (dp[i,j] - dout[i] . out[i])
//   dv[j] = sum m[i,j] p[i,j] dout[i]
//   dq[i] = scale sum_j ds[i,j] k[j]     dk[j] = scale sum ds[i,j] q[i]
//   dtable[h,u] = sum over samples, and i and j with buckets[j - i + seq - 1] = u, of ds[i,j]
// where the sums for dk and dv are over i and over the heads of the group, in order. On the CPU
// those for dtable are over i and j by distance, then over samples, then over distances; on CUDA
// over samples and distances last. dtable is computed where it is asked for alone. Overwrites the
// gradients, which are apart from each other and from all else; other heads of their tensors are
// left alone. 10 head_dim FLOPs for each probability, a fifth of them for p a second time, and with
// dropout again 15; with a bias 1, and 1 more for dtable. `in` has the dropout that forward had.
void AttentionBackward(Stream& stream, const AttentionInputs& in, ConstView out, ConstView lse,
                       ConstView dout, const AttentionGradients& gradients, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_
