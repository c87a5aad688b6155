// The operands of row_adagrad.h, as its kernels get them.
// Tests: tests/trainer/ops/row_adagrad_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ROW_ADAGRAD_OPERANDS_H_
#define FSDP_TRAIN_TRAINER_OPS_ROW_ADAGRAD_OPERANDS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"

namespace fsdp {

struct RowAdagradOptions {
  double lr_scale = 1;  // >= 0.
  double eps = 1e-8;    // > 0.
  uint64_t seed = 0;    // For stochastic rounding to bf16.
  int rank = 0, world = 1;
};

struct RowAdagradOperands {
  ConstView ids;
  View gradients;
  ConstView factors, coefficient, mean_scale;
  std::optional<ConstView> loss_scale;
  View table, sums;
};
template <typename Visit>
void ForEachAddress(RowAdagradOperands& o, const Visit& visit) {
  visit(o.ids), visit(o.gradients), visit(o.factors), visit(o.coefficient), visit(o.mean_scale);
  visit(o.loss_scale), visit(o.table), visit(o.sums);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ROW_ADAGRAD_OPERANDS_H_
