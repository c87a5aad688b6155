// The common part of the losses of logits that are there: class_loss.h, binary_loss.h. Not an op
// itself.
// Tests: tests/trainer/ops/class_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_
#define FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The operands: z and dz of one dtype and shape, weights [rows] and loss [1], fp32. A count of
// correct classes has its sum in place of the loss.
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

// One of these losses.
struct LogitLossForm {
  const char* name;
  int rank = 2;                   // The rank of z, whose first dimension are the rows.
  DType targets = DType::kInt32;  // [rows].
  int64_t workspace_bytes = 0;    // Written once and read once.
  double flops = 0;               // A logit.
  bool reads_again = true;        // z, for its gradient.
  const char* sum = "loss";       // What the header calls LogitLoss::loss.
};

// The operation, without its kernels: one of the rows, and one of the sum. Throws
// std::invalid_argument where an operand is wrong.
Operation LogitLossOperation(const LogitLossForm& form, const LogitLoss& loss);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOGIT_LOSS_H_
