#include "trainer/fsdp/row_placement.h"

#include <algorithm>

namespace fsdp {

std::optional<RowPlacement::Row> RowPlacement::At(int position, int64_t own_row) const {
  const int64_t row = own_row * world + position;
  if (row >= total_rows()) return std::nullopt;
  const auto behind = std::upper_bound(first_row.begin(), first_row.end(), row);
  const auto table = static_cast<int>(behind - first_row.begin()) - 1;
  return Row{table, row - first_row[table]};
}

RowPlacement::Stretch RowPlacement::RowsOf(int table, int position) const {
  // The first own row that is not before row `row` of all.
  const auto from = [&](int64_t row) {
    return row <= position ? 0 : (row - position + world - 1) / world;
  };
  const int64_t begin = from(first_row[table]);
  return {begin, from(first_row[table + 1]) - begin};
}

}  // namespace fsdp
