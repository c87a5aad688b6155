// Layers as functions on the tape. Each runs an op and, on a tape that records, pushes the node
// that runs its backward. Values are [rows, cols] with rows = batch x seq. A layer keeps handles of
// its parameters, so its backward runs wherever they have been gathered to by then.
#ifndef FSDP_TRAIN_TRAINER_NN_LAYERS_H_
#define FSDP_TRAIN_TRAINER_NN_LAYERS_H_

#include <functional>
#include <optional>

#include "trainer/autograd/var.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/runtime/allocator.h"

namespace fsdp {

class Tape;

// token_table[token] + position_table[position], [batch * seq, hidden].
Var Embed(Tape& tape, const Parameter& token_table, const Parameter& position_table,
          const TokenBatch& batch);
// token_table[token].
Var Embed(Tape& tape, const Parameter& token_table, const TokenBatch& batch);

// Cheap to make again (Recompute::kSelective), as RmsNorm, Gelu and Swiglu are.
Var LayerNorm(Tape& tape, const Var& x, const Parameter& weight, const Parameter& bias, float eps);
Var RmsNorm(Tape& tape, const Var& x, const Parameter& weight, float eps);

// x [rows, in] -> [rows, out]. x may have another shape of rows x in elements, such as a sample's
// vectors. `bias` may be null. A weight of more than two dimensions is read as [out, all others].
Var Linear(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
           const Parameter* bias);

// residual + Linear(x), in one pass over the sum where the weight has no adapters. The result has
// the shape of `residual`, which has as many elements as Linear(x).
Var LinearResidual(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
                   const Parameter* bias, const Var& residual);

Var Gelu(Tape& tape, const Var& x);  // Tanh approximation.

// Gelu(Linear(x)): the same bits in less time.
Var LinearGelu(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
               const Parameter* bias);

// x [rows, 2 * inner], a gate and a value -> [rows, inner].
Var Swiglu(Tape& tape, const Var& x);

// The numbers of heads in qkv [batch * seq, (heads + 2 * kv_heads) * head_dim]: the heads of q,
// then those of k, then those of v.
struct AttentionHeads {
  int64_t heads, kv_heads;
};

// Dropout of attention's probabilities in the model's `layer`: each layer drops others.
struct ProbabilityDropout {
  double rate = 0;
  size_t layer = 0;
};

// Attention of qkv -> [batch * seq, heads * head_dim]. Cheap to make again, in memory if not in
// time.
Var CausalAttention(Tape& tape, const Var& qkv, const TokenBatch& batch,
                    const AttentionHeads& heads, const ProbabilityDropout& dropout = {});

// Mixes the heads behind the softmax and normalises over them (attention_math.h). Such attention
// runs as AttentionBackend::kMath, whatever backend the tape has. All three or none.
struct MixedHeads {
  const Parameter* matrix = nullptr;  // [heads, heads]
  const Parameter* weight = nullptr;  // [heads], like the bias.
  const Parameter* bias = nullptr;
  float eps = 0;
};

// The keys that queries see, and the changes to their scores (attention.h). Left out: none.
struct Attending {
  AttentionMask mask = AttentionMask::kFull;
  View positions = {};              // int32 [rows, seq]: each row is made of documents.
  View lengths = {};                // int32 [rows]: keys from there on are not seen.
  std::optional<float> scale = {};  // 1 / sqrt(head_dim).
  Var bias = {};                    // [heads, buckets]. Its owner sums its gradient.
  TensorPtr buckets = nullptr;      // int32 [seq + keys - 1], by distance from query to key.
  View sample_keys = {};            // Batch::sample_keys, with a dropout.
  MixedHeads mixed = {};
};

// Attention of qkv, of `rows` samples -> [rows * seq, heads * head_dim], by our own kernels. Cheap
// to make again, in memory if not in time. Over a cache the mask is causal, and the buckets are
// those of attention_cached.h. A tape whose backend is AttentionBackend::kMath keeps the
// probabilities, here and in the other attention layers, and they are as cheap.
Var SelfAttention(Tape& tape, const Var& qkv, int64_t rows, const AttentionHeads& heads,
                  const Attending& attending, const ProbabilityDropout& dropout = {});

// The same for q [rows * seq, heads * head_dim] and an encoder's output kv [rows * keys, 2 *
// kv_heads * head_dim], the heads of k, then those of v.
Var CrossAttention(Tape& tape, const Var& q, const Var& kv, int64_t rows,
                   const AttentionHeads& heads, const Attending& attending,
                   const ProbabilityDropout& dropout = {});

// The same for keys and values that a decoder computes once. Over a cache, the first pass calls
// `kv` and keeps the result there (KvCache::Encoded); later passes only read it. With a bias,
// attending.positions, int32 [rows, seq], are then those of the queries, which are the new tokens,
// and attending.buckets are those of attention_cached.h. Without a cache it is the function above.
Var CrossAttention(Tape& tape, const Var& q, const std::function<Var()>& kv, int64_t rows,
                   const AttentionHeads& heads, const Attending& attending,
                   const ProbabilityDropout& dropout = {});

// The norms and the rotation of each head of q and k before attention.
struct Rotary {
  TensorPtr table;  // RopeTable: [positions, 2, head_dim / 2].
  // Both or none: an RMSNorm of each head, [head_dim], or one over all heads together.
  const Parameter* q_norm = nullptr;
  const Parameter* k_norm = nullptr;
  float eps = 0;
};

// Attention after norms and rotation. Without norms qkv is rotated in place: no other layer may use
// it, and it is not cheap.
Var RotaryAttention(Tape& tape, const Var& qkv, const TokenBatch& batch,
                    const AttentionHeads& heads, const Rotary& rotary,
                    const ProbabilityDropout& dropout = {});

// In place: no other layer may use x, and x is not cheap. `sample_keys` are Batch::sample_keys; x
// has one row, or the same number of rows, for each of them.
Var Dropout(Tape& tape, const Var& x, const View& sample_keys, uint32_t site, double rate);

// factor * x, in a new tensor, which is not cheap, whatever x is.
Var Scaled(Tape& tape, const Var& x, float factor);

// x + y. Both get one tensor as their gradient.
Var Residual(Tape& tape, const Var& x, const Var& y);

// An input of a batch, fp32 [rows, ...], as [rows, elements of a sample] in the tape's dtype of
// activations. It has no gradient, so Linear does not compute one; no other layer may read it.
Var FromBatch(Tape& tape, const View& input);

// loss[0] += scale * sum of weights x cross-entropy of x times the table's transpose. `targets`,
// int32, and `weights`, fp32, have one element for each row of x, in any shape. On a tape that
// records, the loss runs in Backward() and makes the gradients in the same pass over the table.
void HeadLoss(Tape& tape, const Var& x, const Parameter& table, const View& targets,
              const View& weights, float scale, View loss);

// logits[r, :] = the table times row (r, column) of x. The tape must not record.
void HeadLogits(Tape& tape, const Var& x, const Parameter& table, const TokenBatch& batch,
                int64_t column, View logits);

// Relu and Sigmoid keep only their output for backward, which the product behind them keeps, too.
// They are not cheap to make again, because nobody keeps their inputs.
Var Relu(Tape& tape, const Var& x);
Var Sigmoid(Tape& tape, const Var& x);

Var GeluExact(Tape& tape, const Var& x);  // x Phi(x). Cheap to make again, as Gelu is.

// x [rows, 2 * inner], a gate and a value -> gelu(gate) * value, [rows, inner], with Gelu's tanh.
// Cheap to make again.
Var GatedGelu(Tape& tape, const Var& x);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_LAYERS_H_
