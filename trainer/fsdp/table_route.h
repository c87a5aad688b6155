// The owners of the rows of embedding tables (nn/table.h), the number of rows that a rank asks for
// at a time, which all ranks know, and the rows that the ids of one rank's step name: each once, by
// owning rank, in the order in which rounds ask for them (ops/table_rows.h). Pure arithmetic on the
// host.
// Tests: tests/trainer/fsdp/table_route_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_TABLE_ROUTE_H_
#define FSDP_TRAIN_TRAINER_FSDP_TABLE_ROUTE_H_

#include <cstdint>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/view.h"
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

// A route in memory: the arrays that kernels read, end to end.
struct TableRoute {
  View rows;    // int64 [step_ids]: row numbers at their owners, sorted by owner and RowKey().
  View owners;  // int32 [W + 1]: where each owner's rows begin, and the end of all.
  // int32 [micro_batches, batch_ids], by micro-batch. places: the index in `rows` of each id's row,
  // or -1. order: a micro-batch's, as PoolBagsBackward() wants it.
  View places, order;
  View log2_rounds;  // int32 [1]: log2 of the fewest rounds in which no owner is asked for more
                     // than C rows.

  // Micro-batch m's places, [rows, slots], and order, [batch_ids].
  View PlacesOf(const TableLayout& layout, int64_t m) const;
  View OrderOf(const TableLayout& layout, int64_t m) const;
};
template <typename Visit>
void ForEachAddress(TableRoute& route, const Visit& visit) {
  visit(route.rows), visit(route.owners), visit(route.places), visit(route.order);
  visit(route.log2_rounds);
}

int64_t TableRouteBytes(const TableLayout& layout);
TableRoute CarveTableRoute(const TableLayout& layout, const View& bytes);

// Makes a route: Add() for each micro-batch from 0 on, then Finish(). Works in `work`, uint8
// [TableRouteWorkBytes()], and allocates nothing.
int64_t TableRouteWorkBytes(const TableLayout& layout);
class TableRouteMaker {
 public:
  // Keeps the reference.
  TableRouteMaker(const TableLayout& layout, const TableRoute& route, const View& work);

  void Add(ConstView ids);  // int32 [batch_rows, slots, 2]: nn/table.h.
  void Finish();

 private:
  struct Id;

  int Log2Rounds() const;

  const TableLayout& layout_;
  const TableRoute route_;
  Id* const ids_;
  int64_t count_ = 0;  // Ids that are present.
  int64_t next_ = 0;   // Micro-batch.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_TABLE_ROUTE_H_
