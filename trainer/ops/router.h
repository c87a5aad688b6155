// The router of a mixture of experts: which experts a token goes to, with what weight, and the
// losses that balance their loads.
//
// T tokens are S samples of T / S, N experts, k a token. Samples: token t belongs to sample
// s = t / (T / S). lengths int32 [S]: a sample's tokens from lengths[s] on are padding, which goes
// to no expert and counts nowhere. T_s = lengths[s].
//   logits   fp32 [T, N], N at most kMaxExperts
//   choices  int32 [T, k]: experts, -1 for padding
//   places   int32 [T, k]: the row of each choice (expert_rows.h), -1 for padding
// Scores p [T, N] are those of RouterOptions, in fp32. A NaN among a token's logits makes the
// weights of its choices NaN where it reaches them, and never an index out of range.
//
// No op has a workspace. All throw std::invalid_argument before anything is enqueued. No result
// depends on the number of threads.
// Tests: tests/trainer/ops/router_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ROUTER_H_
#define FSDP_TRAIN_TRAINER_OPS_ROUTER_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/router_options.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Overwrites choices with the k experts of the largest p + bias, in descending order. Among equal
// ones the lower expert comes first; a NaN is below all numbers. bias: fp32 [N]. With groups, a
// group counts as the sum of its two largest p + bias; of equal groups the lower one is better.
void ChooseExperts(Stream& stream, ConstView logits, std::optional<ConstView> bias,
                   ConstView lengths, const RouterOptions& options, View choices);

// weights fp32 [rows], by place: weights[places[t, j]] = scale p[t, choices[t, j]], without the
// bias. `normalize`: divided by the sum of the token's k scores (sigmoid: that sum + 1e-20). Rows
// that are no choice's place stay.
void RouterWeights(Stream& stream, ConstView logits, ConstView choices, ConstView places,
                   const RouterOptions& options, View weights);

// sums fp32 [S] = each row's sum of weights fp32 [S, L], in float64, in order.
void SampleWeights(Stream& stream, ConstView weights, View sums);

// The routing of a step, summed over samples with their weights w = sample_weights fp32 [S]:
//   f_se   = the number of sample s's tokens that chose expert e / T_s (all e: k)
//   P_se   = the mean over its tokens of p (sigmoid: of p / sum_e p)
//   aux_s  = N sum_e f_se P_se, with `shares` fp32 [N] in place of f_s where given
//   z_s    = the mean over its tokens of (log sum_e exp logit)^2
// Overwrites sample_shares fp32 [S, N] with f, and sample_losses fp32 [S, 2] with aux_s and z_s;
// zeros where T_s = 0. Adds to tally, fp32 [2 N + 3]:
//   [0, N)    tokens that chose each expert, whatever the weights
//   [N, 2 N)  sum_s w_s f_s
//   2 N       sum_s w_s      2 N + 1  sum_s w_s aux_s      2 N + 2  sum_s w_s z_s
// The weighted sums leave out samples with w_s = 0 or T_s = 0. Sums over tokens are float64.
void TallyRouting(Stream& stream, ConstView logits, ConstView choices, ConstView lengths,
                  ConstView sample_weights, std::optional<ConstView> shares,
                  const RouterOptions& options, View sample_shares, View sample_losses, View tally);

// Coefficients of aux and z in the loss.
struct RouterBalance {
  double aux = 0, z = 0;
};

// Overwrites dlogits fp32 [T, N] with the gradient of
//   sum_r weights[r] row_gradients[r] + loss_scale sum_s w_s (balance.aux aux_s + balance.z z_s)
// row_gradients fp32 [rows]; loss_scale fp32 [1], 1 where it is left out: row_gradients have it
// already. f is a constant: `shares`, fp32 [S, N], or fp32 [N] for all samples; it is read only
// where balance.aux is not 0. Padding gets 0.
void RouterBackward(Stream& stream, ConstView logits, ConstView choices, ConstView places,
                    ConstView row_gradients, ConstView lengths, ConstView sample_weights,
                    ConstView shares, const RouterBalance& balance,
                    std::optional<ConstView> loss_scale, const RouterOptions& options,
                    View dlogits);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ROUTER_H_
