// Whose the rows of a model's embedding tables are, and how many of them a rank asks for at a time:
// what all ranks know of nn/table.h's tables. Pure arithmetic.
// Tests: tests/trainer/fsdp/table_route_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_TABLE_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_FSDP_TABLE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/fsdp/row_deal.h"
#include "trainer/nn/table.h"

namespace fsdp {

struct TableLayout : RowDeal {
  std::vector<EmbeddingTable> tables;
  std::vector<int32_t> first_slot = {0};  // As first_row, of a sample's ids.
  int64_t batch_rows = 1;                 // Of a micro-batch.
  int64_t micro_batches = 1;              // Of a training step.

  int64_t width() const { return tables.front().width; }
  DType dtype() const { return tables.front().dtype; }
  int64_t slots() const { return first_slot.back(); }

  // The most ids of a rank: in a micro-batch, and in a step, in which each row is asked for once.
  int64_t batch_ids() const { return batch_rows * slots(); }
  int64_t step_ids() const { return batch_ids() * micro_batches; }
  // C: what a rank asks each other for in a round, and is asked for by each: of W ranks together
  // `capacity` times a rank's own ids. kLeastRows where ids are so few that chance would rule, but
  // never more than there are.
  int64_t round_rows() const;
};

inline constexpr int64_t kLeastRows = 8;

// Throws std::invalid_argument for more ids in a step than 2^31 - 1.
TableLayout MakeTableLayout(const std::vector<EmbeddingTable>& tables, int world,
                            int64_t batch_rows, int64_t micro_batches);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_TABLE_LAYOUT_H_
