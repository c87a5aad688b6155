// How a mixture's router is kept from sending all tokens to a few experts. Recipes read it, so this
// header includes nothing.
// Tests: tests/trainer/nn/experts_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_BALANCE_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_BALANCE_OPTIONS_H_

namespace fsdp {

// Where the share f of tokens that chose an expert comes from, in the balance loss (nn/experts.h).
enum class BalanceScope {
  kSequence,  // From each sample itself.
  kStep,      // From all samples of the step before; the first step has none.
};

struct BalanceOptions {
  double aux_loss = 0, z_loss = 0;  // Coefficients, at least 0.
  BalanceScope scope = BalanceScope::kSequence;
  double bias_rate = 0;  // By how much a correction bias moves a step (MoveBias()).
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_BALANCE_OPTIONS_H_
