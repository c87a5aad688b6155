// Row-wise Adagrad (Duchi, Hazan, Singer 2011, with one sum per row, as FBGEMM's
// exact_row_wise_adagrad has it) for the rows of a table whose gradients several ranks have sent.
// Each row `id` is updated once. g is the sum of its gradients in the order of ranks:
//   g = (g_0 + g_1 + ...) mean_scale / loss_scale
//   sums[id] += mean over the row of g^2
//   table[id, :] -= lr_scale lr g / (sqrt(sums[id]) + eps)
// ids int64 [W, C]: for each rank its rows by rising RowKey() (table_rows.h), each once, then -1.
// gradients [W, C, width], fp32, used as scratch memory; those of -1 are not read. table [rows,
// width], fp32 or bf16; sums [rows], fp32. factors: UpdateFactors (step_parameters.h); only lr and
// the number of the update count. coefficient, mean_scale, loss_scale [1], fp32. Where
// `coefficient` is not finite nothing but `gradients` changes.
//
// Arithmetic is fp32. A bf16 table is rounded stochastically (update.h). A draw is keyed by (seed,
// number of the update, row `id` * world + rank, element), so it belongs to the row of the whole
// table. No result depends on the number of threads. No workspace.
// Throws std::invalid_argument before anything is enqueued.
// Tests: tests/trainer/ops/row_adagrad_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ROW_ADAGRAD_H_
#define FSDP_TRAIN_TRAINER_OPS_ROW_ADAGRAD_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

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

void RowAdagrad(Stream& stream, const RowAdagradOptions& options,
                const RowAdagradOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ROW_ADAGRAD_H_
