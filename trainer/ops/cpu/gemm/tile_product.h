// A product on tiles, for sources that define what is done to a tile (gemm_tiles.h).
//
// Blocks of B are packed and stay in a second-level cache while panels of 32 rows of A pass by, of
// which a stretch of k stays in the first level. Rows of A with contiguous k are read where they
// lie, other factors are packed; edges are padded with zeros, because another shape of tiles takes
// as long to set as a product of 256 k (measured on an Emerald Rapids: 295 ns with, 171 without).
//
// Sums pass from a block of k to the next through memory, as fp32. Blocks begin at multiples of 32
// k, so that no block shows in a sum.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PRODUCT_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PRODUCT_H_

#include <xmmintrin.h>

#include <cstdint>

#include "trainer/core/dtype.h"
#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/gemm/tile_finish.h"
#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/gemm/tile_plan.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// As the instructions have it: subnormals are read and written as zero.
class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~WithoutSubnormals() { _mm_setcsr(before_); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
  const unsigned before_;
};

// 32 rows of A, or 16, and a step after the other of their k.
struct PanelOfA {
  const char* data;
  int64_t row, step;  // Bytes.
};

// kDown x kAcross tiles of sums, over `steps` of k. B passes by, A stays in the first-level cache.
// beside(s): called in each step, for what the tiles leave time for.
template <typename Tiles, int kDown, int kAcross, typename Beside>
void Micro(Tiles& tiles, PanelOfA a, const char* b, int64_t steps, float* sums, int64_t next_row,
           bool add, const Beside& beside) {
  float* const below = sums + kTileRows * next_row;
  if (add) {
    tiles.template Load<0>(sums, next_row * 4);
    if constexpr (kAcross > 1) tiles.template Load<1>(sums + 16, next_row * 4);
    if constexpr (kDown > 1) tiles.template Load<2>(below, next_row * 4);
    if constexpr (kDown > 1 && kAcross > 1) tiles.template Load<3>(below + 16, next_row * 4);
  } else {
    tiles.template Zero<0>();
    if constexpr (kAcross > 1) tiles.template Zero<1>();
    if constexpr (kDown > 1) tiles.template Zero<2>();
    if constexpr (kDown > 1 && kAcross > 1) tiles.template Zero<3>();
  }
  for (int64_t s = 0; s < steps; ++s, a.data += a.step, b += kStepBytes) {
    tiles.template LoadPassing<6>(b);
    tiles.template Load<4>(a.data, a.row);
    if constexpr (kAcross > 1) tiles.template LoadPassing<7>(b + kTileBytes);
    if constexpr (kDown > 1) tiles.template Load<5>(a.data + kTileRows * a.row, a.row);
    tiles.template Multiply<0, 4, 6>();
    if constexpr (kAcross > 1) tiles.template Multiply<1, 4, 7>();
    if constexpr (kDown > 1) tiles.template Multiply<2, 5, 6>();
    if constexpr (kDown > 1 && kAcross > 1) tiles.template Multiply<3, 5, 7>();
    beside(s);
  }
  tiles.template Store<0>(sums, next_row * 4);
  if constexpr (kAcross > 1) tiles.template Store<1>(sums + 16, next_row * 4);
  if constexpr (kDown > 1) tiles.template Store<2>(below, next_row * 4);
  if constexpr (kDown > 1 && kAcross > 1) tiles.template Store<3>(below + 16, next_row * 4);
}

// Up to 32 rows of sums times a block's columns. beside(j, s): called in step s of columns
// [j, j + 32).
template <typename Tiles, typename Beside>
void Strip(Tiles& tiles, const PanelOfA& a, int64_t rows, const char* b, int64_t b_panel,
           int64_t cols, int64_t steps, float* sums, int64_t next_row, bool add,
           const Beside& beside) {
  for (int64_t j = 0; j < cols; j += 32, b += b_panel, sums += 32) {
    const bool wide = cols - j > kTileRows;
    const auto step = [&](int64_t s) __attribute__((always_inline)) { beside(j, s); };
    if (rows > kTileRows) {
      wide ? Micro<Tiles, 2, 2>(tiles, a, b, steps, sums, next_row, add, step)
           : Micro<Tiles, 2, 1>(tiles, a, b, steps, sums, next_row, add, step);
    } else {
      wide ? Micro<Tiles, 1, 2>(tiles, a, b, steps, sums, next_row, add, step)
           : Micro<Tiles, 1, 1>(tiles, a, b, steps, sums, next_row, add, step);
    }
  }
}

// Lines of [row, row + rows) and [col, col + cols) of C, and of what it is finished with.
FSDP_ALWAYS_INLINE void FetchAhead(const TileProduct& p, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols) {
  const int64_t element = p.dtype == DType::kFloat32 ? 4 : 2, bytes = cols * element;
  for (const char* data : {static_cast<const char*>(p.c), p.added, p.finished_with}) {
    if (data == nullptr) continue;
    data += row * p.c_row + col * element;
    for (int64_t r = 0; r < rows; ++r, data += p.c_row) {
      __builtin_prefetch(data, 1, 2);
      if (bytes > 64) __builtin_prefetch(data + 64, 1, 2);
    }
  }
}

// Rows [row, row + rows) and columns [col, col + cols): all of k.
template <typename Tiles>
void Block(Tiles& tiles, const TileProduct& p, const TilePlan& plan, int64_t row, int64_t rows,
           int64_t col, int64_t cols) {
  char* const packed_b = p.memory;
  char* const packed_a = packed_b + kPackedB;
  auto* const all_sums = reinterpret_cast<float*>(packed_a + kPackedA);
  const int64_t all_steps = Parts(p.k, kStepK);
  for (int64_t q = 0; q < plan.k_blocks; ++q) {
    const int64_t first = all_steps * q / plan.k_blocks;
    const int64_t steps = all_steps * (q + 1) / plan.k_blocks - first;
    const int64_t k0 = first * kStepK, k = Least(p.k - k0, steps * kStepK);
    const bool last = q + 1 == plan.k_blocks;
    const int64_t panel = steps * kStepBytes;
    for (int64_t j = 0; j < cols; j += 32) {
      PackPanel<true>({p.b.data + (col + j) * p.b.next_i + k0 * p.b.next_k, p.b.next_i, p.b.next_k},
                      cols - j, k, packed_b + j / 32 * panel);
    }
    for (int64_t i = 0; i < rows; i += 32) {
      const int64_t height = Least(rows - i, 32);
      const char* const from = p.a.data + (row + i) * p.a.next_i + k0 * p.a.next_k;
      PanelOfA a = {from, p.a.next_i, kTileRow};
      if (!plan.in_place || height % kTileRows != 0) {
        char* const to = plan.keeps ? packed_a + (i * all_steps + first * 32) * kTileRow : packed_a;
        if (col == 0 || !plan.keeps) {
          PackPanel<false>({from, p.a.next_i, p.a.next_k}, rows - i, k, to);
        }
        a = {to, kTileRow, kStepBytes};
      }
      float* const sums = all_sums + (plan.k_blocks > 1 ? i * plan.next_row : 0);
      const int64_t stretch =
          plan.k_blocks > 1 ? steps : Least(steps, plan.blocks.stretch / kStepK);
      for (int64_t s = 0; s < steps; s += stretch) {
        const PanelOfA here = {a.data + s * a.step, a.row, a.step};
        const int64_t taken = Least(stretch, steps - s);
        const auto strip = [&](const auto& beside) __attribute__((always_inline)) {
          Strip(tiles, here, height, packed_b + s * kStepBytes, panel, cols, taken, sums,
                plan.next_row, q > 0 || s > 0, beside);
        };
        if (!last || s + stretch < steps) {
          strip([](int64_t, int64_t) {});
          continue;
        }
        // Rows of C that are fetched in a step: two lines of each are too many at once.
        const int64_t each = p.dtype == DType::kFloat32 ? Parts(height, taken) : height;
        strip([&](int64_t j, int64_t step) __attribute__((always_inline)) {
          const int64_t first = step * each;
          if (first >= height) return;
          FetchAhead(p, row + i + first, Least(each, height - first), col + j, Least(cols - j, 32));
        });
      }
      if (last) FinishTile(p, sums, plan.next_row, row + i, height, col, cols);
    }
  }
}

// Tiles: tiles of 16 rows of 64 bytes with the numbers 0 to 7, from its construction to its end.
template <typename Tiles>
void MultiplyOn(const TileProduct& p) {
  const WithoutSubnormals mode;
  Tiles tiles;
  const TilePlan plan = PlanTiles(p);
  for (int64_t row = 0; row < p.rows; row += plan.rows) {
    for (int64_t col = 0; col < p.cols; col += plan.cols) {
      Block(tiles, p, plan, row, Least(plan.rows, p.rows - row), col,
            Least(plan.cols, p.cols - col));
    }
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PRODUCT_H_
