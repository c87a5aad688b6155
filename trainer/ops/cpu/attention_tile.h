// The common part of attention's kernels for floats and for bf16, in sources that are compiled once
// for each instruction set (isa.h). Each source defines its own elements of a factor.
//
// Scores are kept transposed, st[j][q]: keys are rows, queries are lanes. Then the maximum, the sum
// and the exponentials of a query run along rows of lanes with no horizontal step, and every
// product finds its right operand contiguous and its left one broadcast:
//   st   [j][q] = sum_d k[j][d]   qt [d][q]        o [q][d] += sum_j st[j][q] v[j][d]
//   dpt  [j][q] = sum_d v[j][d] dout_t[d][q]       dq[q][d] += sum_j dst[j][q] k[j][d]
//   dv   [j][d] += sum_q st[j][q]  dout[q][d]      dk[j][d] += sum_q dst[j][q] q[q][d]
// Only queries (and dout) are transposed, once for each tile of queries. A tile is 48 queries or
// keys: 8 blocks of 6 rows, and 3 of 16 lanes. Three tiles fit in 32 KB at head_dim 64. Rows that a
// product reads several times (v forward, k backward) are first copied together: rows of a tensor
// lie thousands of bytes apart and would fall into few sets of the cache.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_TILE_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_TILE_H_

#include <cstdint>

#include "trainer/ops/cpu/attention_kernels.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int64_t kTile = 48;
constexpr int64_t kRows = 6;   // Rows of a register block.
constexpr int64_t kUnit = 16;  // Lanes; blocks and padding are multiples of it.
#ifdef __AVX512F__
constexpr int kLanes = 16, kMaxUnits = 4;  // 24 + 4 + 1 of 32 registers.
#else
constexpr int kLanes = 8, kMaxUnits = 1;  // 12 + 2 + 1 of 16.
#endif
constexpr int kPerUnit = kUnit / kLanes;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4)));

FSDP_ALWAYS_INLINE Vector LoadVector(const void* from) {  // Not aligned.
  Vector v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

FSDP_ALWAYS_INLINE void StoreVector(void* to, Vector v) { __builtin_memcpy(to, &v, sizeof(v)); }

constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

constexpr int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

void Fill(float* begin, float* end, float value) {
  for (; begin < end; ++begin) *begin = value;
}

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

// A tile of scores. On the diagonal only queries from j on attend to key j: products leave out the
// blocks of 6 keys that no query of a block needs.
struct Tile {
  int64_t keys, queries;  // Valid ones.
  bool diagonal;

  // The first lane that is computed in the row of key j.
  int64_t FirstLane(int64_t j) const { return diagonal ? j / kRows * kRows / kUnit * kUnit : 0; }
  int64_t Lanes() const { return RoundUp(queries, kUnit); }
};

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

// Sets -infinity where query q does not see key j: exp() gives exactly zero there.
void Mask(const Tile& tile, float* st) {
  if (!tile.diagonal) return;
  for (int64_t j = 0; j < tile.keys; ++j) {
    Fill(st + j * kTile + tile.FirstLane(j), st + j * kTile + j, -__builtin_inff());
  }
}

// The same where key j, of the tile that begins at `key`, lies before the document of query q.
// `start`: the begins of the queries' documents, in ascending order.
void MaskDocuments(const Tile& tile, const int64_t* start, int64_t key, float* st) {
  if (tile.queries == 0 || start[tile.queries - 1] <= key) return;
  int64_t lane = 0;  // The first whose document begins after key j.
  for (int64_t j = 0; j < tile.keys; ++j) {
    while (lane < tile.queries && start[lane] <= key + j) ++lane;
    Fill(st + j * kTile + lane, st + j * kTile + tile.Lanes(), -__builtin_inff());
  }
}

// The same where key j lies behind the document of query q, under a full mask. `end`: the ends of
// the queries' documents, in ascending order.
void MaskEnds(const Tile& tile, const int64_t* end, int64_t key, float* st) {
  if (tile.queries == 0 || end[0] >= key + tile.keys) return;
  int64_t lane = 0;  // The first whose document ends behind key j.
  for (int64_t j = 0; j < tile.keys; ++j) {
    while (lane < tile.queries && end[lane] <= key + j) ++lane;
    Fill(st + j * kTile, st + j * kTile + lane, -__builtin_inff());
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

template <typename T>
Tile TileAt(const BasicAttentionHead<T>& head, int64_t query, int64_t key) {
  return {Min(kTile, head.seen - key), Min(kTile, head.seq - query), head.causal && query == key};
}

// The begins of the documents of a tile's queries.
template <typename T>
void Starts(const BasicAttentionHead<T>& head, int64_t query, int64_t* start) {
  for (int64_t i = query; i < Min(head.seq, query + kTile); ++i) {
    if (head.positions == nullptr) {
      start[i - query] = 0;
      continue;
    }
    start[i - query] = i - head.positions[i];
  }
}

// The keys that a tile of queries sees: [begin, end), and among them each query's own.
struct Span {
  int64_t begin, end;
  int64_t starts[kTile], ends[kTile];  // `ends` only under a full mask.

  template <typename T>
  Span(const BasicAttentionHead<T>& head, int64_t query) {
    const int64_t queries = Min(kTile, head.seq - query);
    Starts(head, query, starts);
    begin = starts[0] / kTile * kTile;
    if (head.causal) {
      end = Min(query + kTile, head.seen);
      return;
    }
    int64_t at = head.keys;
    if (head.positions != nullptr) {
      at = query + queries;
      while (at < head.keys && head.positions[at] != 0) ++at;
    }
    end = Min(at, head.seen);
    for (int64_t i = queries - 1; i >= 0; --i) {
      ends[i] = at;
      if (head.positions != nullptr && head.positions[query + i] == 0) at = query + i;
    }
  }
};

// AddBias() adds the bias to scores, SumBias() adds ds to the sums for its gradient. Lanes beyond
// the last query have none.
template <typename T>
void AddBias(const BasicAttentionHead<T>& head, const Tile& tile, int64_t query, int64_t key,
             float* st) {
  if (head.bias == nullptr) return;
  for (int64_t j = 0; j < tile.keys; ++j) {
    const float* const bias = head.bias + query - (key + j) + head.keys - 1;
    float* const row = st + j * kTile;
#pragma omp simd
    for (int64_t q = tile.FirstLane(j); q < tile.queries; ++q) row[q] += bias[q];
  }
}

template <typename T>
void SumBias(const BasicAttentionHead<T>& head, const Tile& tile, int64_t query, int64_t key,
             const float* dst) {
  if (head.bias_sums == nullptr) return;
  for (int64_t j = 0; j < tile.keys; ++j) {
    float* const sums = head.bias_sums + query - (key + j) + head.keys - 1;
    const float* const row = dst + j * kTile;
#pragma omp simd
    for (int64_t q = tile.FirstLane(j); q < tile.queries; ++q) sums[q] += row[q];
  }
}

template <typename T>
void ClearBiasSums(const BasicAttentionHead<T>& head) {
  if (head.bias_sums != nullptr) {
    Fill(head.bias_sums, head.bias_sums + head.seq + head.keys - 1, 0.0f);
  }
}

// Scores of keys that their queries do not see become -infinity.
template <typename T>
void MaskAll(const BasicAttentionHead<T>& head, const Span& span, const Tile& tile, int64_t key,
             float* st) {
  Mask(tile, st);
  MaskDocuments(tile, span.starts, key, st);
  if (!head.causal) MaskEnds(tile, span.ends, key, st);
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

// The factor for the sums of query q of the tile, and its lse. It is 0 for a query that sees no
// key.
template <typename T>
float Inverse(const BasicAttentionHead<T>& head, const Span& span, int64_t q, const float* sum) {
  return span.starts[q] < head.seen ? 1.0f / sum[q] : 0.0f;
}

template <typename T>
float LogSum(const BasicAttentionHead<T>& head, const Span& span, int64_t q, const float* maximum,
             const float* sum) {
  return span.starts[q] < head.seen ? maximum[q] + __builtin_logf(sum[q]) : 0.0f;
}

// words[r][i] = Philox({key / 4, query + i, site, 1 + head}, draws.key)[r]: trainer/core/philox.cc
// along lanes. `key` is a multiple of 4.
void DrawWords(const ProbabilityDraws& draws, int64_t query, int64_t key,
               uint32_t (*words)[kTile]) {
  uint32_t *const c0 = words[0], *const c1 = words[1], *const c2 = words[2], *const c3 = words[3];
  for (int64_t i = 0; i < kTile; ++i) {
    c0[i] = static_cast<uint32_t>(key / 4);
    c1[i] = static_cast<uint32_t>(query + i);
    c2[i] = draws.site;
    c3[i] = 1 + draws.head;
  }
  uint32_t k0 = draws.key[0], k1 = draws.key[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
#pragma omp simd
    for (int64_t i = 0; i < kTile; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i], p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
  }
}

// Calls row(j, m) for each key of the tile, in order: m[i] belongs to query i.
template <typename Row>
FSDP_ALWAYS_INLINE void ForEachDrawn(const ProbabilityDraws& draws, const Tile& tile, int64_t query,
                                     int64_t key, const Row& row) {
  static_assert(kTile % 4 == 0);
  alignas(64) uint32_t words[4][kTile];
  alignas(64) float m[kTile];
  for (int64_t j = 0; j < tile.keys; ++j) {
    if (j % 4 == 0) DrawWords(draws, query, key + j, words);
    const uint32_t* drawn = words[j % 4];
#pragma omp simd
    for (int64_t i = 0; i < kTile; ++i) m[i] = drawn[i] >= draws.threshold ? draws.scale : 0.0f;
    row(j, m);
  }
}

// p becomes p m.
template <typename T>
void Drop(const BasicAttentionHead<T>& head, const Tile& tile, int64_t query, int64_t key,
          float* st) {
  if (!head.drops) return;
  ForEachDrawn(head.drop, tile, query, key, [&](int64_t j, const float* m) {
    float* p = st + j * kTile;
#pragma omp simd
    for (int64_t i = tile.FirstLane(j); i < tile.Lanes(); ++i) p[i] *= m[i];
  });
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

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_TILE_H_
