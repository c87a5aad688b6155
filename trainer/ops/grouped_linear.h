// Linear layers of N experts, each over its own rows (expert_rows.h). Group e has the rows
// [offsets[e], offsets[e + 1]), any number of them, none included. Rows before offsets[0] and from
// offsets[N] on are neither read nor written: an op may have a stretch of a layer's experts.
//   offsets  int32 [N + 1], rising. Only the device reads them: the host does not wait.
//   w, dw    [N out, in]: expert e has the rows [e out, (e + 1) out), each an output's weights
//   x, y     and their gradients: fp32, bf16 or fp16, all of one dtype; w of that dtype or fp32, dw
//            any of the three
// An operand with sources, int32 [rows], has row sources[r] in place of row r; otherwise row r.
// Each source is a row of the operand.
//
// Sums are fp32 and rounded when they are complete, old values among their terms. A row of y or dx
// has the same bits whatever else is in the product; dw_e has those of its own rows. Cost: 2 rows
// in out / parts FLOPs. No workspace. Throws std::invalid_argument before anything is enqueued.
// Tests: tests/trainer/ops/grouped_linear_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_GROUPED_LINEAR_H_
#define FSDP_TRAIN_TRAINER_OPS_GROUPED_LINEAR_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

struct GroupedOptions {
  int64_t column = 0;  // y and dy: columns [column, column + out) of a wider tensor.
  float scale = 1;     // The product's.
  bool add = false;    // Adds to y or dx, which is overwritten otherwise.
  int64_t parts = 1;   // The experts have one of so many shares of the rows, as the cost counts.
};

// The side of the square tiles in which a GPU computes a product of `groups` groups: large ones
// where the groups fill them, and where there are enough for a large GPU. m, n: the result's rows,
// of all groups, and columns; `of_weights`: those of each group's own result, as in GroupedDw().
constexpr int64_t GroupedTile(int64_t m, int64_t n, int64_t groups, bool of_weights) {
  constexpr int64_t kLarge = 128, kSmall = 64, kManyTiles = 128, kManyRows = 64;
  const int64_t rows = (m + kLarge - 1) / kLarge, columns = (n + kLarge - 1) / kLarge;
  const bool many = rows * columns * (of_weights ? groups : 1) >= kManyTiles;
  return many && (of_weights || m >= kManyRows * groups) ? kLarge : kSmall;
}

// The most bytes in which a thread of the CPU gathers rows and sums; it keeps them until it ends.
inline constexpr int64_t kGroupedBytesPerThread = int64_t{5} << 20;

// y[r, column + o] = scale sum_i x[source r, i] w_e[o, i]
// x [any, in], y [rows, width], of which other columns stay.
void GroupedForward(Stream& stream, ConstView x, std::optional<ConstView> sources, ConstView w,
                    ConstView offsets, View y, const GroupedOptions& options = {});

// dx[r, i] = scale sum_o dy[source r, column + o] w_e[o, i]
// dy [any, width], dx [rows, in].
void GroupedDx(Stream& stream, ConstView dy, std::optional<ConstView> sources, ConstView w,
               ConstView offsets, View dx, const GroupedOptions& options = {});

// dw_e[o, i] += scale sum_r dy[source r, column + o] x[source r, i], over e's rows in order
// rows: the length of the sources, or else of the operand. Always adds: an expert without rows
// keeps its dw.
void GroupedDw(Stream& stream, ConstView dy, std::optional<ConstView> dy_sources, ConstView x,
               std::optional<ConstView> x_sources, ConstView offsets, View dw,
               const GroupedOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_GROUPED_LINEAR_H_
