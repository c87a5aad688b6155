// Tests: tests/trainer/ops/gemm_test.cc
#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>

#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

constexpr int64_t kVector = 16;  // Floats of the widest.

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

GemmTile GemmPart(int64_t m, int64_t n, int64_t k, const GemmGrain& grain, bool pack_a, int parts,
                  int part) {
  // A narrow C takes the time of a whole vector's columns.
  const double products = static_cast<double>(m) * CeilDiv(n, kVector) * kVector * k;
  parts = std::clamp(static_cast<int>(std::min(products / grain.products, 1e9)), 1, parts);
  if (part >= parts) return {};
  // A grid of down x across tiles. The largest tile decides the time. Among equals the grid with
  // the least packing is best: every thread packs its own part of B, and of A where A is packed. An
  // A that is not packed is read once for every few columns, which costs less.
  const int64_t row_grains = CeilDiv(m, grain.rows), col_grains = CeilDiv(n, grain.cols);
  int down = 1;
  std::tuple<int64_t, int64_t> best{std::numeric_limits<int64_t>::max(), 0};
  for (int d = 1; d <= parts; ++d) {
    if (parts % d != 0) continue;
    const int64_t rows = CeilDiv(row_grains, d) * grain.rows;
    const int64_t cols = CeilDiv(col_grains, parts / d) * grain.cols;
    const std::tuple<int64_t, int64_t> cost{rows * cols, (pack_a ? rows : rows / 4) + cols};
    if (cost < best) best = cost, down = d;
  }
  const int across = parts / down;
  const auto [row, row_end] = ThreadPool::Part(m, grain.rows, down, part / across);
  const auto [col, col_end] = ThreadPool::Part(n, grain.cols, across, part % across);
  return {row, row_end - row, col, col_end - col};
}

}  // namespace fsdp
