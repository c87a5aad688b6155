// How rows of tables are dealt over ranks. Pure arithmetic.
//
// The tables' rows count through, table after table: row g lies on the rank at position g mod W,
// as that rank's row g / W. This spreads frequent rows and small tables over all ranks. Each rank
// has ceil(rows / W) rows, the last of which may be no table's.
// Tests: tests/trainer/fsdp/table_route_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_ROW_PLACEMENT_H_
#define FSDP_TRAIN_TRAINER_FSDP_ROW_PLACEMENT_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp {

struct RowPlacement {
  int world = 1;
  std::vector<int64_t> first_row = {0};  // Where each table's rows begin, and the end of all.

  void AddTable(int64_t rows) { first_row.push_back(first_row.back() + rows); }

  int64_t total_rows() const { return first_row.back(); }
  int64_t own_rows() const { return (total_rows() + world - 1) / world; }

  struct Row {
    int table = 0;
    int64_t row = 0;
  };
  // The table and row of a rank's row; empty: no table's.
  std::optional<Row> At(int position, int64_t own_row) const;
  // A rank's rows of a table, which lie side by side: the first, and how many.
  struct Stretch {
    int64_t begin = 0, count = 0;
  };
  Stretch RowsOf(int table, int position) const;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_ROW_PLACEMENT_H_
