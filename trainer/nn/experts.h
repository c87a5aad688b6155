// A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router sends each token to k of N
// gated MLPs, and adds up what they make of it. With e = choices[t, j] and (g, u) = W_gate_up,e x:
//   y[t] = base[t] + sum_j p_j W_down,e (silu(g) u)
// The weight p_j of a choice multiplies before the down product, so that no [T k, hidden] waits for
// the weight's gradient. Logits, scores and weights are fp32 whatever the activations are.
//
// While it trains, the loss has two more terms, whose gradients the layer adds (the loss itself
// stays what Model::Loss() says). Per sample s of T_s tokens, c the coefficients of
// Tape::balance():
//   c_aux aux_s / L + c_z z_s / L,   aux_s = N sum_e f_e P_e,   z_s = mean_t (log sum_e exp l_te)^2
// with f_e the share of the sample's tokens that chose expert e (all sum to k), or that of the step
// before (BalanceScope::kStep); P_e their mean probability; L the model's mixtures. Samples are
// averaged as their losses are: by the sum of their targets' weights. Nothing of this depends on
// ranks or micro-batches. f is a constant. Fedus et al. 2021 (arXiv:2101.03961, equation 4, there
// with k = 1); Zoph et al. 2022 (arXiv:2202.08906, equation 5); DeepSeek-V3 (arXiv:2412.19437,
// equations 17 to 20).
// Tests: tests/trainer/nn/experts_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_EXPERTS_H_
#define FSDP_TRAIN_TRAINER_NN_EXPERTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/autograd/var.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/nn/buffer.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/router_options.h"

namespace fsdp {

class Tape;

// Elements of a mixture's tally: the tokens of each expert, all ranks' of a step; each expert's sum
// of w_s f_s; and the sums of w_s, w_s aux_s and w_s z_s (TallyRouting(), ops/router.h).
constexpr int64_t TallyElements(int64_t experts) { return 2 * experts + 3; }

// The weights of n experts in a row. gate_up: [n 2 i, hidden], an expert's gate and then its value;
// down: [n hidden, i].
struct ExpertWeights {
  const Parameter *gate_up, *down;
};

// The handles of a layer. Its pieces have equally many experts each.
struct ExpertLayer {
  const Parameter* router;  // [N, hidden].
  std::vector<ExpertWeights> pieces;
  ModelBuffer* tally = nullptr;       // [TallyElements(N)].
  const ModelBuffer* bias = nullptr;  // [N], added to scores for the choice; null: none.
  RouterOptions options = {};
};

// All mixtures of a micro-batch share it.
struct MixtureBatch {
  View lengths;                        // TokenBatch::lengths.
  TensorPtr sample_weights = nullptr;  // fp32 [rows]: sums of a sample's weights. On tapes that
                                       // train.
  float scale = 0;                     // Model::Loss's.
  int64_t mixtures = 1;                // L.
};
// `scale`: as above. Enqueues the sums where the tape trains.
MixtureBatch BatchOfMixtures(Tape& tape, const TokenBatch& batch, float scale, int64_t mixtures);

// x, base: [T, hidden], of one dtype. Returns y, which must be the segment's output: where the
// segment is run again, y is not computed.
Var Experts(Tape& tape, const Var& x, const Var& base, const ExpertLayer& mixture,
            const MixtureBatch& batch);

// The same in several segments, so that a few experts alone are gathered at a time: first
// RouteToExperts(), then RunExperts() for each piece in order. Every bit is that of Experts().
// Rows, [T k] of them whatever the pieces, go from one segment to the next in an ExpertRun, which
// the segments' closures own, and not on the tape.
struct ExpertRun;
std::shared_ptr<ExpertRun> NewExpertRun();
// Returns what the first piece takes, as the segment's output: the value is x, and the gradient
// that the pieces give it is that of base.
Var RouteToExperts(Tape& tape, const Var& x, const Var& base, const ExpertLayer& mixture,
                   const MixtureBatch& batch, const std::shared_ptr<ExpertRun>& run);
// Says, behind the first segment, whether it has a backward: whether its output has a gradient.
void WantGradients(ExpertRun& run, bool wanted);
// `in`: what the segment before returned. The last piece returns y, the others their input; it
// keeps what all have made (ModelSegment::keeps).
Var RunExperts(Tape& tape, const Var& in, const ExpertLayer& mixture, size_t piece,
               const std::shared_ptr<ExpertRun>& run);

// base + sigmoid(x w_gate) MLP(x): the MLP that every token passes, with a gate of one row
// [1, hidden]. The gate is fp32 and multiplies before the down product.
struct GatedMlp {
  const Parameter *gate, *gate_up, *down;
};
Var GatedSharedExpert(Tape& tape, const Var& x, const Var& base, const GatedMlp& mlp);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_EXPERTS_H_
