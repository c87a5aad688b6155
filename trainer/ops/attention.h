// Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762), causal or full, inside documents.
// One head of keys and values may serve a group of query heads (Ainslie et al. 2023,
// arXiv:2305.13245). The kernels go over tiles of queries and keys with a running maximum and sum,
// so no [seq, keys] matrix ever exists (Dao 2023, arXiv:2307.08691, algorithms 1 and 2). For each
// sample and each head h of q, [seq, head_dim], with k and v of head h / (heads of q / heads of k),
// [keys, head_dim]:
//   s[i,j] = scale q[i] . k[j] + bias(h, j - i) where query i sees key j
//   lse[i] = log sum_j exp(s[i,j])     p[i,j] = exp(s[i,j] - lse[i])     out[i] = sum_j p[i,j] v[j]
// scale is in.scale, or 1 / sqrt(head_dim). bias(h, x) = table[h, buckets[x + seq - 1]] of in.bias,
// or 0: relative positions as in Raffel et al. (2020, arXiv:1910.10683, section 2.1), or any other
// function of the distance.
//
// Masks. The document of query i begins at start(i) = i - positions[i].
//   kCausal  Query i sees keys start(i) to i; keys = seq.
//   kFull    Query i sees all keys of its document; keys = seq. Without positions it sees all keys,
//            however many.
// in.lengths, int32 [batch], in [0, keys], hides the keys of sample b from lengths[b] on, whatever
// they hold; their gradients are 0. A query that sees no key has out = 0, lse = 0 and no gradients.
//
// Dropout acts on the probabilities, as in GPT-2: out has p[i,j] m[i,j] in place of p[i,j], where
// in sample b
//   m[i,j] = 1 / (1 - rate) where Philox({j / 4, i, site, 1 + h}, key[b])[j % 4] >= rate 2^32,
// else 0 (trainer/core/philox.h). lse is the same as without dropout. No bit of m depends on ranks,
// micro-batches or recomputation. The last word of the counter is never 0, so Dropout() never draws
// the same numbers.
//
// q, k, v and their gradients are heads of one tensor or of several (heads.h): GPT-2's c_attn gives
// [batch, seq, 3 heads, head_dim]. Tensors of k and v have keys in place of seq. The number of
// heads of k divides that of q; v has as many as k. out, dout: [batch, seq, heads of q, head_dim].
// All of these are fp32, bf16 or fp16, of one dtype; lse: [batch, heads of q, seq], fp32. head_dim
// <= 256; batch, seq and keys may be anything. positions: int32 [batch, seq], 0 at a row's begin;
// each later one is its predecessor plus 1, or 0. The loader of a batch has checked that
// (data/check_row.h). table: [heads of q, buckets], of the dtype of q. buckets: int32 [seq + keys -
// 1], each in [0, number of buckets); their maker ensures that.
//
// Rounding: all is computed in fp32, and each result is rounded once; backward reads `out` as it
// was rounded. Only factors of a product of two bf16 are rounded to bf16: in forward m exp(s -
// max), where max is that of the keys up to the end of a tile; in backward m p, whose p = exp(s -
// lse), and ds. All else is fp32: s, which is scaled behind its product, the maxima, the sums,
// which add unrounded terms, lse, p in ds, dout . out. On CUDA products of fp16 do the same in
// fp16: ds then has fp16's range, and a loss scale must keep it inside. On the CPU fp16 is
// converted exactly, and is fp32 from there on.
//
// Bits: on the CPU none depends on the number of threads or the instruction set, because one thread
// computes a sample's head from beginning to end, and in backward all heads of a group one after
// the other. On CUDA dtype, shapes, mask, positions and lengths alone decide the order of sums,
// except among the 16 terms that tensor cores add at once. Tiles that no query sees are left out.
//
// in.backend lets a CUDA device run cuDNN's kernels, for the calls that they support: causal ones
// of whole rows, and full ones over any number of keys with any scale, without lengths, bias and
// dropout. No GPU has run the full ones yet, nor another scale than the default: a fake of cuDNN
// has, and the real one makes plans of them. cuDNN has its own order of sums. It rounds the factors
// of products as above, but p instead of m exp(s - max), and rounds dk and dv of each head of q
// before a group's are added up. Backward needs q, k, v, out and lse. With dropout it needs no
// more: m is drawn again.
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_

#include <cstdint>

#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Bytes of the workspaces for q of this dtype on this device (never kSim). `backend`: that of the
// inputs. CUDA needs one in backward alone: 4 batch heads seq for dout . out; with a bias 4 batch
// heads (seq + keys - 1) more, for its gradient by distance. cuDNN's are in
// cudnn/attention_cudnn.h. A CPU needs one with a bias alone: 4 heads (seq + keys - 1), the
// bias by distance, and in backward batch times that more. A compute thread of a CPU keeps what it
// makes of a tile of queries, dout . out among it, on its stack, in up to 9 tiles of 48 x head_dim
// floats, and uses it up at once; dk and dv of fp32 add up in place. For bf16 and fp16 it also
// keeps memory outside the plan. For bf16: k and v as products read them, and the sums for dk and
// dv, 4 keys head_dim bytes forward and 14 backward (without AVX512_BF16 8 and 20). For fp16: a
// head's rows as floats, 16 and 32 bytes times head_dim times the longer of seq and keys.
int64_t AttentionForwardWorkspaceBytes(const AttentionDims& dims, DType dtype, DeviceType device,
                                       AttentionBackend backend = AttentionBackend::kOwn);
int64_t AttentionBackwardWorkspaceBytes(const AttentionDims& dims, DType dtype, DeviceType device,
                                        AttentionBackend backend = AttentionBackend::kOwn);

// FLOPs: 4 head_dim for each probability, with dropout 15 more, with a bias 1 more. A causal mask
// has batch heads seq (seq + 1) / 2 probabilities, a full one batch heads seq keys. Pairs above the
// diagonal do not count; pairs outside a document or behind a length do.
void AttentionForward(Stream& stream, const AttentionInputs& in, View out, View lse,
                      View workspace);

//   dp[i,j] = m[i,j] dout[i] . v[j]     ds[i,j] = p[i,j] (dp[i,j] - dout[i] . out[i])
//   dv[j] = sum m[i,j] p[i,j] dout[i]
//   dq[i] = scale sum_j ds[i,j] k[j]     dk[j] = scale sum ds[i,j] q[i]
//   dtable[h,u] = sum over samples, and i and j with buckets[j - i + seq - 1] = u, of ds[i,j]
// where the sums for dk and dv are over i and over the heads of the group, in order. On the CPU the
// sums for dtable are over i and j by distance, then over samples, then over distances; on CUDA
// over samples and distances last. dtable is computed only where it is asked for. Overwrites the
// gradients, which overlap neither each other nor anything else; other heads of their tensors are
// left alone. FLOPs: 10 head_dim for each probability, a fifth of them for computing p again; with
// dropout 15 more, with a bias 1 more, with dtable 1 more. `in` has the dropout that forward had.
void AttentionBackward(Stream& stream, const AttentionInputs& in, ConstView out, ConstView lse,
                       ConstView dout, const AttentionGradients& gradients, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_H_
