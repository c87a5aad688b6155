#include "trainer/fsdp/table_route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>

#include "trainer/core/check.h"
#include "trainer/core/round_up.h"
#include "trainer/fsdp/bump_allocator.h"
#include "trainer/ops/table_rows.h"

namespace fsdp {
namespace {

constexpr uint64_t kAbsent = ~uint64_t{0};

// Bytes that BumpAllocator takes for so many.
int64_t Carved(int64_t elements, DType dtype) { return RoundUp(elements * SizeOf(dtype), 64); }

// 1 / kRowKeyFactor modulo 2^64, by Newton's iteration: each doubles the bits that are right.
constexpr uint64_t InverseFactor() {
  uint64_t inverse = kRowKeyFactor;  // Right in three bits, as any odd number is.
  for (int i = 0; i < 5; ++i) inverse *= 2 - kRowKeyFactor * inverse;
  return inverse;
}
static_assert(kRowKeyFactor * InverseFactor() == 1);

}  // namespace

// An id that is present: sorted by all its members, so what is one row lies side by side, in the
// order of samples.
struct TableRouteMaker::Id {
  uint64_t key;
  int32_t owner, at;

  int64_t row() const { return static_cast<int64_t>(key * InverseFactor()); }
  bool SameRow(const Id& other) const { return key == other.key && owner == other.owner; }
};

View TableRoute::PlacesOf(const TableLayout& layout, int64_t m) const {
  return places.Slice(m * layout.batch_ids(), layout.batch_ids())
      .Reshape(Shape{layout.batch_rows, layout.slots()});
}

View TableRoute::OrderOf(const TableLayout& layout, int64_t m) const {
  return order.Slice(m * layout.batch_ids(), layout.batch_ids());
}

int64_t TableRouteBytes(const TableLayout& layout) {
  return Carved(layout.step_ids(), DType::kInt64) + Carved(layout.world + 1, DType::kInt32) +
         2 * Carved(layout.step_ids(), DType::kInt32) + Carved(1, DType::kInt32);
}

TableRoute CarveTableRoute(const TableLayout& layout, const View& bytes) {
  BumpAllocator bump(bytes);
  TableRoute route;
  route.rows = bump.Take(layout.step_ids(), DType::kInt64);
  route.owners = bump.Take(layout.world + 1, DType::kInt32);
  route.places = bump.Take(layout.step_ids(), DType::kInt32);
  route.order = bump.Take(layout.step_ids(), DType::kInt32);
  route.log2_rounds = bump.Take(1, DType::kInt32);
  return route;
}

int64_t TableRouteWorkBytes(const TableLayout& layout) {
  constexpr int64_t kIdBytes = 16;
  return layout.step_ids() * kIdBytes;
}

TableRouteMaker::TableRouteMaker(const TableLayout& layout, const TableRoute& route,
                                 const View& work)
    : layout_(layout), route_(route), ids_(work.As<Id>()) {
  static_assert(sizeof(Id) == 16);
}

void TableRouteMaker::Add(ConstView ids) {
  FSDP_CHECK_LT(next_, layout_.micro_batches);
  const int64_t slots = layout_.slots(), begin = next_++ * layout_.batch_ids();
  const int32_t* words = ids.As<int32_t>();
  for (int64_t sample = 0; sample < layout_.batch_rows; ++sample) {
    for (size_t t = 0; t < layout_.tables.size(); ++t) {
      for (int32_t s = layout_.first_slot[t]; s < layout_.first_slot[t + 1]; ++s, words += 2) {
        const uint64_t id =
            static_cast<uint32_t>(words[0]) | uint64_t{static_cast<uint32_t>(words[1])} << 32;
        const int64_t at = begin + sample * slots + s;
        route_.places.As<int32_t>()[at] = -1;
        if (id == kAbsent) continue;
        const auto rows = static_cast<uint64_t>(layout_.tables[t].rows);
        const int64_t row = layout_.first_row[t] + static_cast<int64_t>(id % rows);
        ids_[count_++] = {RowKey(row / layout_.world), static_cast<int32_t>(row % layout_.world),
                          static_cast<int32_t>(at)};
      }
    }
  }
}

void TableRouteMaker::Finish() {
  std::sort(ids_, ids_ + count_, [](const Id& a, const Id& b) {
    return std::tie(a.owner, a.key, a.at) < std::tie(b.owner, b.key, b.at);
  });
  int32_t* const owners = route_.owners.As<int32_t>();
  int32_t place = -1;
  int32_t owner = 0;
  owners[0] = 0;
  for (int64_t i = 0; i < count_; ++i) {
    if (i == 0 || !ids_[i].SameRow(ids_[i - 1])) {
      route_.rows.As<int64_t>()[++place] = ids_[i].row();
    }
    while (owner < ids_[i].owner) owners[++owner] = place;
    route_.places.As<int32_t>()[ids_[i].at] = place;
  }
  while (owner < layout_.world) owners[++owner] = place + 1;
  // Elements behind the last are copied along.
  std::fill(route_.rows.As<int64_t>() + place + 1, route_.rows.As<int64_t>() + layout_.step_ids(),
            -1);
  int32_t* const order = route_.order.As<int32_t>();
  std::fill(order, order + layout_.step_ids(), -1);
  // Where the next of a micro-batch goes: behind what it has.
  const int64_t per_batch = layout_.batch_ids();
  for (int64_t m = 0; m < layout_.micro_batches; ++m) {
    int32_t* next = order + m * per_batch;
    for (int64_t i = 0; i < count_; ++i) {
      if (ids_[i].at / per_batch == m) {
        *next++ = static_cast<int32_t>(ids_[i].at - m * per_batch);
      }
    }
  }
  *route_.log2_rounds.As<int32_t>() = Log2Rounds();
}

int TableRouteMaker::Log2Rounds() const {
  const int64_t* const rows = route_.rows.As<int64_t>();
  const int32_t* const owners = route_.owners.As<int32_t>();
  const int64_t most = layout_.round_rows();
  int log2 = 0;
  for (int owner = 0; owner < layout_.world; ++owner) {
    // Whether row i and the one `most` behind it are asked for in one round.
    for (int64_t i = owners[owner]; i + most < owners[owner + 1]; ++i) {
      while (log2 < 62 && RoundOf(RowKey(rows[i]), log2) == RoundOf(RowKey(rows[i + most]), log2)) {
        ++log2;
      }
    }
  }
  return log2;
}

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
