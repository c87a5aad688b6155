// The common part of attention's kernels for floats and for bf16, in sources that are compiled once
// for each instruction set (isa.h). Each source defines its own elements of a factor.
//
// With transposed scores (attention_lanes.h) every product finds its right operand contiguous and
// its left one broadcast:
//   st   [j][q] = sum_d k[j][d]   qt [d][q]        o [q][d] += sum_j st[j][q] v[j][d]
//   dpt  [j][q] = sum_d v[j][d] dout_t[d][q]       dq[q][d] += sum_j dst[j][q] k[j][d]
//   dv   [j][d] += sum_q st[j][q]  dout[q][d]      dk[j][d] += sum_q dst[j][q] q[q][d]
// Only queries (and dout) are transposed, once for each tile of queries. A tile is 48 queries or
// keys: 8 blocks of 6 rows, and 3 of 16 lanes. Three tiles fit in 32 KB at head_dim 64. Rows that a
// product reads several times (v forward, k backward) are first copied together: rows of a tensor
// lie thousands of bytes apart and would fall into few sets of the cache.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_TILE_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_TILE_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_drop.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int64_t kTile = 48;
constexpr int64_t kRows = 6;  // Rows of a register block.
#ifdef __AVX512F__
constexpr int kMaxUnits = 4;  // 24 + 4 + 1 of 32 registers.
#else
constexpr int kMaxUnits = 1;  // 12 + 2 + 1 of 16.
#endif

// The use of a product's sums: stored in `out`, added to it, or scaled and stored.
enum class Sums { kStored, kAdded, kScaled };

// Factor defines a Step, the 4 bytes of a factor: MulAdd(left, right, sum) adds one step to the
// sum, and n elements are Steps(n).
//
// c[6][16 kUnits] (+)= sum_{i < k} a(row, i) b[i][16 kUnits] in steps, where a(row, i) is
// a[row lda + i], or a[i lda + row] if transposed.
template <typename Factor, int kUnits, bool kTransposed, Sums kSums>
FSDP_ALWAYS_INLINE void MultiplyBlock(const typename Factor::Step* a, int64_t lda,
                                      const typename Factor::Step* b, int64_t ldb, int64_t k,
                                      float* c, int64_t ldc, float scale) {
  constexpr int kVectors = kUnits * kPerUnit;
  Vector sum[kRows][kVectors] = {};
  for (int64_t i = 0; i < k; ++i) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = LoadVector(b + i * ldb + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      uint32_t one;  // Bits: a step may be no float.
      __builtin_memcpy(&one, kTransposed ? &a[i * lda + r] : &a[r * lda + i], sizeof(one));
      Vector left = (Vector)(one - Bits{});
      asm("" : "+v"(left));  // One load a row: as an operand of each sum it would be kVectors.
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Factor::MulAdd(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* out = c + r * ldc + v * kLanes;
      if constexpr (kSums == Sums::kAdded) sum[r][v] = LoadVector(out) + sum[r][v];
      if constexpr (kSums == Sums::kScaled) sum[r][v] = scale * sum[r][v];
      StoreVector(out, sum[r][v]);
    }
  }
}

// The same for any number of lanes that is a multiple of 16.
template <typename Factor, bool kTransposed, Sums kSums>
FSDP_ALWAYS_INLINE void MultiplyRows(const typename Factor::Step* a, int64_t lda,
                                     const typename Factor::Step* b, int64_t ldb, int64_t k,
                                     int64_t lanes, float* c, int64_t ldc, float scale = 1) {
  for (; lanes >= kMaxUnits * kUnit; lanes -= kMaxUnits * kUnit) {
    MultiplyBlock<Factor, kMaxUnits, kTransposed, kSums>(a, lda, b, ldb, k, c, ldc, scale);
    b += kMaxUnits * kUnit;
    c += kMaxUnits * kUnit;
  }
  if constexpr (kMaxUnits > 1) {
    switch (lanes / kUnit) {
      case 1:
        return MultiplyBlock<Factor, 1, kTransposed, kSums>(a, lda, b, ldb, k, c, ldc, scale);
      case 2:
        return MultiplyBlock<Factor, 2, kTransposed, kSums>(a, lda, b, ldb, k, c, ldc, scale);
      case 3:
        return MultiplyBlock<Factor, 3, kTransposed, kSums>(a, lda, b, ldb, k, c, ldc, scale);
    }
  }
}

// On the diagonal products leave out the blocks of 6 keys that no query of a block needs.
using Tile = TileOf<kTile, kRows>;

// Rows of a tile, in the tensor or copied together. They are readable to a multiple of kRows rows
// and of kUnit columns.
template <typename Factor>
struct Rows {
  const typename Factor::Step* data;
  int64_t step;
};

// out[j][q] = sum_d rows[j][d] lanes[d][q], over `steps` steps; scaled with Sums::kScaled.
template <typename Factor, Sums kSums>
void Scores(const Tile& tile, Rows<Factor> rows, const typename Factor::Step* lanes, int64_t steps,
            float* out, float scale = 1) {
  for (int64_t j = 0; j < tile.keys; j += kRows) {
    const int64_t q = tile.FirstLane(j);
    MultiplyRows<Factor, false, kSums>(rows.data + j * rows.step, rows.step, lanes + q, kTile,
                                       steps, tile.Lanes() - q, out + j * kTile + q, kTile, scale);
  }
}

// out[q][d] += sum_j weights[j][q] rows[j][d], where j runs in steps.
template <typename Factor>
void AddOverKeys(const Tile& tile, const typename Factor::Step* weights, Rows<Factor> rows,
                 int64_t ld, float* out) {
  for (int64_t q = 0; q < tile.queries; q += kRows) {
    const int64_t keys = tile.diagonal ? Min(tile.keys, q + kRows) : tile.keys;
    MultiplyRows<Factor, true, Sums::kAdded>(weights + q, kTile, rows.data, rows.step,
                                             Factor::Steps(keys), ld, out + q * ld, ld);
  }
}

// out[j][d] = sum_q weights[j][q] rows[q][d], or += ; q runs in steps.
template <typename Factor, Sums kSums>
void SumOverQueries(const Tile& tile, const typename Factor::Step* weights,
                    const typename Factor::Step* rows, int64_t ld, float* out, int64_t out_step) {
  constexpr int64_t kStep = Factor::Steps(kTile);
  static_assert(kRows % 2 == 0);  // So whole steps are left out on the diagonal.
  for (int64_t j = 0; j < tile.keys; j += kRows) {
    const int64_t first = tile.diagonal ? j : 0;
    MultiplyRows<Factor, false, kSums>(
        weights + j * kStep + Factor::Steps(first), kStep, rows + Factor::Steps(first) * ld, ld,
        Factor::Steps(tile.queries - first), ld, out + j * out_step, out_step);
  }
}

// to[d][r] = from[r][d] for a tile's rows; lanes after the last row are zero.
template <typename Step>
void Transpose(const Step* from, int64_t rows, int64_t cols, int64_t ld, Step* to) {
  for (int64_t d = 0; d < cols; ++d) {
    for (int64_t r = 0; r < rows; ++r) to[d * kTile + r] = from[r * ld + d];
    for (int64_t r = rows; r < RoundUp(rows, kUnit); ++r) to[d * kTile + r] = 0;
  }
}

using Lanes = float[kTile];
using Square = float[kTile * kTile];

template <typename T>
int64_t Ld(const BasicAttentionHead<T>& head) {
  return RoundUp(head.head_dim, kUnit);
}

// st becomes exp(st - maximum); o, maximum and sum are brought to the new maximum.
void RunningSoftmax(const Tile& tile, int64_t ld, float* st, float* maximum, float* sum, float* o) {
  alignas(64) Lanes before;
  __builtin_memcpy(before, maximum, sizeof(before));
  for (int64_t j = 0; j < tile.keys; ++j) {
    const float* row = st + j * kTile;
#pragma omp simd
    for (int64_t q = tile.FirstLane(j); q < tile.Lanes(); ++q) {
      maximum[q] = row[q] > maximum[q] ? row[q] : maximum[q];
    }
  }
#pragma omp simd
  for (int64_t q = 0; q < tile.Lanes(); ++q) {
    before[q] = Exp(before[q] - maximum[q]);
    sum[q] *= before[q];
  }
  for (int64_t j = 0; j < tile.keys; ++j) {
    float* row = st + j * kTile;
#pragma omp simd
    for (int64_t q = tile.FirstLane(j); q < tile.Lanes(); ++q) {
      row[q] = Exp(row[q] - maximum[q]);
      sum[q] += row[q];
    }
  }
  for (int64_t q = 0; q < tile.queries; ++q) {
#pragma omp simd
    for (int64_t d = 0; d < ld; ++d) o[q * ld + d] *= before[q];
  }
}

// From scores st and dst = dout . v: st becomes m p, and dst becomes ds.
template <typename T>
void ScoreGradients(const BasicAttentionHead<T>& head, const Tile& tile, int64_t query, int64_t key,
                    const float* lse_lanes, const float* dot_lanes, float* st, float* dst) {
  if (head.drops) {
    ForEachDrawn(head.drop, tile, query, key, [&](int64_t j, const float* m) {
      float *p = st + j * kTile, *ds = dst + j * kTile;
#pragma omp simd
      for (int64_t i = tile.FirstLane(j); i < tile.Lanes(); ++i) {
        p[i] = Exp(p[i] - lse_lanes[i]);
        ds[i] = p[i] * (m[i] * ds[i] - dot_lanes[i]);
        p[i] *= m[i];
      }
    });
    return;
  }
  for (int64_t j = 0; j < tile.keys; ++j) {
    float *p = st + j * kTile, *ds = dst + j * kTile;
#pragma omp simd
    for (int64_t i = tile.FirstLane(j); i < tile.Lanes(); ++i) {
      p[i] = Exp(p[i] - lse_lanes[i]);
      ds[i] = p[i] * (ds[i] - dot_lanes[i]);
    }
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_TILE_H_
