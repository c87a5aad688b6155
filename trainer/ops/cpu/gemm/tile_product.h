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

#include "trainer/ops/cpu/gemm/gemm_tiles.h"
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
template <typename Tiles, int kDown, int kAcross>
void Micro(Tiles& tiles, PanelOfA a, const char* b, int64_t steps, float* sums, int64_t next_row,
           bool add) {
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
  }
  tiles.template Store<0>(sums, next_row * 4);
  if constexpr (kAcross > 1) tiles.template Store<1>(sums + 16, next_row * 4);
  if constexpr (kDown > 1) tiles.template Store<2>(below, next_row * 4);
  if constexpr (kDown > 1 && kAcross > 1) tiles.template Store<3>(below + 16, next_row * 4);
}

// Up to 32 rows of sums times a block's columns.
template <typename Tiles>
void Strip(Tiles& tiles, const PanelOfA& a, int64_t rows, const char* b, int64_t b_panel,
           int64_t cols, int64_t steps, float* sums, int64_t next_row, bool add) {
  for (int64_t j = 0; j < cols; j += 32, b += b_panel, sums += 32) {
    const bool wide = cols - j > kTileRows;
    if (rows > kTileRows) {
      wide ? Micro<Tiles, 2, 2>(tiles, a, b, steps, sums, next_row, add)
           : Micro<Tiles, 2, 1>(tiles, a, b, steps, sums, next_row, add);
    } else {
      wide ? Micro<Tiles, 1, 2>(tiles, a, b, steps, sums, next_row, add)
           : Micro<Tiles, 1, 1>(tiles, a, b, steps, sums, next_row, add);
    }
  }
}

// Lines of C that finish() will write, while the tiles work.
FSDP_ALWAYS_INLINE void FetchC(const TileProduct& p, int64_t row, int64_t rows, int64_t col,
                               int64_t cols) {
  if (p.c == nullptr) return;
  for (int64_t r = row; r < row + rows; ++r) {
    const char* const line = p.c + r * p.c_row + col * p.c_element;
    for (int64_t at = 0; at < cols * p.c_element; at += 64) __builtin_prefetch(line + at, 1, 2);
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
          PackPanel<false>({from, p.a.next_i, p.a.next_k}, height, k, to);
        }
        a = {to, kTileRow, kStepBytes};
      }
      float* const sums = all_sums + (plan.k_blocks > 1 ? i * plan.next_row : 0);
      const int64_t stretch =
          plan.k_blocks > 1 ? steps : Least(steps, plan.blocks.stretch / kStepK);
      if (last) FetchC(p, row + i, height, col, cols);
      for (int64_t s = 0; s < steps; s += stretch) {
        const PanelOfA here = {a.data + s * a.step, a.row, a.step};
        Strip(tiles, here, height, packed_b + s * kStepBytes, panel, cols,
              Least(stretch, steps - s), sums, plan.next_row, q > 0 || s > 0);
      }
      if (last) p.finish(p.context, sums, plan.next_row, row + i, height, col, cols);
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
