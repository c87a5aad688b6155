// Layers as functions on the tape: each runs an op and, on a tape that records, pushes the node
// that runs its backward. Values are [rows, cols] with rows = batch x seq. A layer keeps handles of
// its parameters, so its backward runs wherever they have been gathered to by then.
#ifndef FSDP_TRAIN_TRAINER_NN_LAYERS_H_
#define FSDP_TRAIN_TRAINER_NN_LAYERS_H_

#include "trainer/autograd/tape.h"
#include "trainer/nn/model.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/linear.h"

namespace fsdp {

// token_table[token] + position_table[position], [batch * seq, hidden].
Var Embed(Tape& tape, const Parameter& token_table, const Parameter& position_table,
          const Batch& batch);

// Cheap to make again (Recompute::kSelective).
Var LayerNorm(Tape& tape, const Var& x, const Parameter& weight, const Parameter& bias, float eps);

// x [rows, in] -> [rows, out].
Var Linear(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
           const Parameter& bias);

// Tanh approximation. Cheap to make again.
Var Gelu(Tape& tape, const Var& x);

// qkv [batch * seq, 3 * hidden] -> [batch * seq, hidden]. Cheap to make again, in memory if not in
// time.
Var CausalAttention(Tape& tape, const Var& qkv, int64_t batch, int64_t seq, int64_t heads);

// x + y. Gradients of both are one tensor.
Var Residual(Tape& tape, const Var& x, const Var& y);

// loss[0] += scale * sum of weights x cross-entropy of x times the table's transpose. On a tape
// that records it runs in Backward(), where it makes the gradients in the same pass over the
// vocabulary.
void HeadLoss(Tape& tape, const Var& x, const Parameter& table, const Batch& batch, float scale,
              View loss);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_LAYERS_H_
