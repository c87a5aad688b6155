// The owners of the rows of embedding tables (nn/table.h), and the number of rows that a rank asks
// for at a time. All ranks know it. Pure arithmetic.
// Tests: tests/trainer/fsdp/table_route_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_TABLE_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_FSDP_TABLE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/fsdp/row_placement.h"
#include "trainer/nn/table.h"

namespace fsdp {

struct TableLayout : RowPlacement {
  std::vector<EmbeddingTable> tables;
  std::vector<int32_t> first_slot = {0};  // By table, and the end: where its ids begin in a sample.
  int64_t batch_rows = 1;                 // A micro-batch's rows.
  int64_t micro_batches = 1;              // Per training step.

  int64_t width() const { return tables.front().width; }
  DType dtype() const { return tables.front().dtype; }
  int64_t slots() const { return first_slot.back(); }

  // The most ids of a rank: in a micro-batch, and in a step, which asks for each row once.
  int64_t batch_ids() const { return batch_rows * slots(); }
  int64_t step_ids() const { return batch_ids() * micro_batches; }
  // C: the rows that each rank asks of each other rank in a round. C of W ranks together is
  // `capacity` times a rank's own ids. At least kLeastRows, because with few ids chance would rule,
  // but never more than there are ids.
  int64_t round_rows() const;
};

inline constexpr int64_t kLeastRows = 8;

// Throws std::invalid_argument for more ids in a step than 2^31 - 1.
TableLayout MakeTableLayout(const std::vector<EmbeddingTable>& tables, int world,
                            int64_t batch_rows, int64_t micro_batches);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_TABLE_LAYOUT_H_
