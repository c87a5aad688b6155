// The common part of the losses of logits that exist in memory: class_loss.h, binary_loss.h. Not an
// op itself.
// Tests: tests/trainer/ops/class_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_
#define FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

// The operands: z and dz of one dtype and shape, weights [rows] and loss [1], fp32. A count of
// correct classes writes its sum to `loss`.
struct LogitLoss {
  ConstView z, targets, weights;
  float scale = 1;
  std::optional<ConstView> loss_scale;
  View loss;
  std::optional<View> dz;  // Without: the loss alone.
  View workspace;
};
template <typename Visit>
void ForEachAddress(LogitLoss& loss, const Visit& visit) {
  visit(loss.z);
  visit(loss.targets);
  visit(loss.weights);
  visit(loss.loss_scale);
  visit(loss.loss);
  visit(loss.dz);
  visit(loss.workspace);
}

// The properties of one of these losses.
struct LogitLossForm {
  const char* name;
  int rank = 2;                   // The rank of z, whose first dimension is the rows.
  DType targets = DType::kInt32;  // [rows].
  int64_t workspace_bytes = 0;    // Written once and read once.
  double flops = 0;               // Per logit.
  bool reads_again = true;        // Reads z again for its gradient.
  const char* sum = "loss";       // The op's own name for LogitLoss::loss.
};

// The operation without its kernels: one goes over the rows, one adds up their terms. Throws
// std::invalid_argument where an operand is wrong.
Operation LogitLossOperation(const LogitLossForm& form, const LogitLoss& loss);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_
