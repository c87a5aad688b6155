// How a product on tiles is cut into blocks, and where they are packed and summed.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PLAN_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PLAN_H_

#include <cstdint>

#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// Columns and k of a packed block, and the k of a panel of A that all its columns use before the
// next. The wide block packs an A less often. All from measurements of GPT-2's products on an
// Emerald Rapids (48 KiB, 2 MiB of cache a core), by another program of this plan.
struct TileBlocks {
  int64_t cols, k, stretch;
};
constexpr TileBlocks kBlocksInPlace = {384, 768, 384}, kBlocksPacked = {768, 512, 512};

// The parts of TileProduct::memory.
constexpr int64_t kPackedB = int64_t{1} << 20, kPackedA = int64_t{4} << 20;
constexpr int64_t kSums = (kTileProductBytes - kPackedB - kPackedA) / 4;
static_assert(kBlocksInPlace.cols * kBlocksInPlace.k * kElement <= kPackedB);
static_assert(kBlocksPacked.cols * kBlocksPacked.k * kElement <= kPackedB);

// Fewer rows at a time would pack B for too few.
constexpr int64_t kLeastRows = 256;

FSDP_ALWAYS_INLINE int64_t Parts(int64_t n, int64_t part) { return (n + part - 1) / part; }
FSDP_ALWAYS_INLINE int64_t UpTo32(int64_t n) { return Parts(n, 32) * 32; }

// How a product is cut.
struct TilePlan {
  TileBlocks blocks;
  bool in_place;  // A has rows of contiguous k that end with a step.
  bool keeps;     // All of A's packed rows stay while the columns pass by.
  int64_t k_blocks;
  int64_t rows, cols;  // At a time.
  int64_t next_row;    // Floats from a row of sums to the next.
};

TilePlan PlanTiles(const TileProduct& p) {
  TilePlan plan = {};
  // Rows a multiple of 4 KiB apart would all fall into one set of a first-level cache.
  plan.in_place = p.a.next_k == kElement && p.k % kStepK == 0 && p.a.next_i % 4096 != 0;
  plan.blocks = plan.in_place ? kBlocksInPlace : kBlocksPacked;
  plan.k_blocks = Parts(p.k, plan.blocks.k);
  plan.cols = UpTo32(Parts(p.cols, Parts(p.cols, plan.blocks.cols)));
  plan.next_row = plan.cols + 16;  // A cache line more than a multiple of two, or of four.
  plan.rows = UpTo32(p.rows);
  const auto at_most = [&](int64_t most) __attribute__((always_inline)) {
    if (plan.rows > most) plan.rows = UpTo32(Parts(p.rows, Parts(p.rows, most / 32 * 32)));
  };
  if (plan.k_blocks > 1) at_most(kSums / plan.next_row);
  const int64_t kept = kPackedA / (UpTo32(p.k) * kElement);
  plan.keeps = !plan.in_place && p.cols > plan.cols && kept >= Least(plan.rows, kLeastRows);
  if (plan.keeps) at_most(kept);
  return plan;
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PLAN_H_
