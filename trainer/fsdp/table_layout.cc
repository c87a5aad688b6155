#include "trainer/fsdp/table_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace fsdp {

int64_t TableLayout::round_rows() const {
  const double asked = std::ceil(tables.front().capacity * static_cast<double>(step_ids()) / world);
  if (asked >= static_cast<double>(step_ids())) return step_ids();
  return std::min(std::max(static_cast<int64_t>(asked), kLeastRows), step_ids());
}

TableLayout MakeTableLayout(const std::vector<EmbeddingTable>& tables, int world,
                            int64_t batch_rows, int64_t micro_batches) {
  TableLayout layout;
  layout.world = world;
  layout.tables = tables;
  layout.batch_rows = batch_rows;
  layout.micro_batches = micro_batches;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t slots = 0;
  for (const EmbeddingTable& table : tables) {
    layout.AddTable(table.rows);
    slots += table.bag;
    layout.first_slot.push_back(static_cast<int32_t>(std::min(slots, kMost)));
  }
  if (slots > kMost / batch_rows / micro_batches) {
    throw std::invalid_argument("[MakeTableLayout] a step of a rank has " + std::to_string(slots) +
                                " ids a sample, which is more than 2^31 - 1 ids");
  }
  return layout;
}

}  // namespace fsdp
