// How a mixture's router is kept from using a few experts alone. Recipes read it, so this header
// includes nothing.
// Tests: tests/trainer/nn/experts_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_BALANCE_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_BALANCE_OPTIONS_H_

namespace fsdp {

// Where the share f that an expert has of all choices comes from (nn/experts.h).
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
