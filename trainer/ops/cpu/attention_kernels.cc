// Scores are kept transposed, st[j][q]: keys are rows, queries are lanes. Then the maximum, the sum
// and the exponentials of a query run along rows of lanes with no horizontal step, and every
// product finds its right operand contiguous and its left one broadcast:
//   st   [j][q] = sum_d k[j][d]   qt [d][q]        o [q][d] += sum_j st[j][q] v[j][d]
//   dpt  [j][q] = sum_d v[j][d] dout_t[d][q]       dq[q][d] += sum_j dst[j][q] k[j][d]
//   dv   [j][d] += sum_q st[j][q]  dout[q][d]      dk[j][d] += sum_q dst[j][q] q[q][d]
// Only queries (and dout) are transposed, once a tile of queries. A tile is 48 of either: 8 blocks
// of 6 rows and 3 of 16 lanes; three tiles fit in 32 KB at head_dim 64. What a product reads
// several times (v forward, k backward) is copied together first: rows of a tensor lie thousands of
// bytes apart and would meet in few sets of the cache.
#include "trainer/ops/cpu/attention_kernels.h"

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int64_t kTile = 48;
constexpr int64_t kRows = 6;   // Of a register block.
constexpr int64_t kUnit = 16;  // Of lanes: what blocks and padding are multiples of.
#ifdef __AVX512F__
constexpr int kLanes = 16, kMaxUnits = 4;  // 24 + 4 + 1 of 32 registers.
#else
constexpr int kLanes = 8, kMaxUnits = 1;  // 12 + 2 + 1 of 16.
#endif
constexpr int kPerUnit = kUnit / kLanes;

typedef float Vector __attribute__((vector_size(kLanes * 4)));

FSDP_ALWAYS_INLINE Vector LoadVector(const float* from) {  // Not aligned.
  Vector v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

FSDP_ALWAYS_INLINE void StoreVector(float* to, Vector v) { __builtin_memcpy(to, &v, sizeof(v)); }

constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

constexpr int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

void Fill(float* begin, float* end, float value) {
  for (; begin < end; ++begin) *begin = value;
}

// c[6][16 kUnits] (+)= sum_{i < k} a(row, i) b[i][16 kUnits], where a(row, i) is a[row lda + i], or
// a[i lda + row] if transposed.
template <int kUnits, bool kTransposed, bool kAdd>
FSDP_ALWAYS_INLINE void MultiplyBlock(const float* a, int64_t lda, const float* b, int64_t ldb,
                                      int64_t k, float* c, int64_t ldc) {
  constexpr int kVectors = kUnits * kPerUnit;
  Vector sum[kRows][kVectors] = {};
  for (int64_t i = 0; i < k; ++i) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = LoadVector(b + i * ldb + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      Vector left = (kTransposed ? a[i * lda + r] : a[r * lda + i]) - Vector{};
      asm("" : "+v"(left));  // One load a row: as an operand of each sum it would be kVectors.
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* out = c + r * ldc + v * kLanes;
      StoreVector(out, kAdd ? LoadVector(out) + sum[r][v] : sum[r][v]);
    }
  }
}

// The same for any number of lanes, a multiple of 16.
template <bool kTransposed, bool kAdd>
FSDP_ALWAYS_INLINE void MultiplyRows(const float* a, int64_t lda, const float* b, int64_t ldb,
                                     int64_t k, int64_t lanes, float* c, int64_t ldc) {
  for (; lanes >= kMaxUnits * kUnit; lanes -= kMaxUnits * kUnit) {
    MultiplyBlock<kMaxUnits, kTransposed, kAdd>(a, lda, b, ldb, k, c, ldc);
    b += kMaxUnits * kUnit;
    c += kMaxUnits * kUnit;
  }
  if constexpr (kMaxUnits > 1) {
    switch (lanes / kUnit) {
      case 1:
        return MultiplyBlock<1, kTransposed, kAdd>(a, lda, b, ldb, k, c, ldc);
      case 2:
        return MultiplyBlock<2, kTransposed, kAdd>(a, lda, b, ldb, k, c, ldc);
      case 3:
        return MultiplyBlock<3, kTransposed, kAdd>(a, lda, b, ldb, k, c, ldc);
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

// Rows of a tile, where the tensor has them or copied together: readable to a multiple of kRows
// rows and of kUnit columns.
struct Rows {
  const float* data;
  int64_t step;
};

// out[j][q] = sum_d rows[j][d] lanes[d][q].
void Scores(const Tile& tile, Rows rows, const float* lanes, int64_t head_dim, float* out) {
  for (int64_t j = 0; j < tile.keys; j += kRows) {
    const int64_t q = tile.FirstLane(j);
    MultiplyRows<false, false>(rows.data + j * rows.step, rows.step, lanes + q, kTile, head_dim,
                               tile.Lanes() - q, out + j * kTile + q, kTile);
  }
}

// out[q][d] += sum_j weights[j][q] rows[j][d].
void AddOverKeys(const Tile& tile, const float* weights, Rows rows, int64_t ld, float* out) {
  for (int64_t q = 0; q < tile.queries; q += kRows) {
    const int64_t keys = tile.diagonal ? Min(tile.keys, q + kRows) : tile.keys;
    MultiplyRows<true, true>(weights + q, kTile, rows.data, rows.step, keys, ld, out + q * ld, ld);
  }
}

// out[j][d] = sum_q weights[j][q] rows[q][d], or += .
template <bool kAdd>
void SumOverQueries(const Tile& tile, const float* weights, const float* rows, int64_t ld,
                    float* out, int64_t out_step) {
  for (int64_t j = 0; j < tile.keys; j += kRows) {
    const int64_t first = tile.diagonal ? j : 0;
    MultiplyRows<false, kAdd>(weights + j * kTile + first, kTile, rows + first * ld, ld,
                              tile.queries - first, ld, out + j * out_step, out_step);
  }
}

// Where key j must not be seen by query q. exp() makes exact zeros of it.
void Mask(const Tile& tile, float* st) {
  if (!tile.diagonal) return;
  for (int64_t j = 0; j < tile.keys; ++j) {
    Fill(st + j * kTile + tile.FirstLane(j), st + j * kTile + j, -__builtin_inff());
  }
}

// The same where key j, of the tile that begins at `key`, lies before the document of query q.
// `start` is where the queries' documents begin: in ascending order.
void MaskDocuments(const Tile& tile, const int64_t* start, int64_t key, float* st) {
  if (tile.queries == 0 || start[tile.queries - 1] <= key) return;
  int64_t lane = 0;  // The first whose document begins after key j.
  for (int64_t j = 0; j < tile.keys; ++j) {
    while (lane < tile.queries && start[lane] <= key + j) ++lane;
    Fill(st + j * kTile + lane, st + j * kTile + tile.Lanes(), -__builtin_inff());
  }
}

// to[r][d] = scale from[r][d], [kTile, ld]: the rest of the rows and columns that blocks touch is
// zero.
void Load(const float* from, int64_t stride, int64_t rows, int64_t head_dim, float scale,
          int64_t ld, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t d = 0; d < head_dim; ++d) to[r * ld + d] = scale * from[r * stride + d];
    Fill(to + r * ld + head_dim, to + (r + 1) * ld, 0.0f);
  }
  Fill(to + rows * ld, to + RoundUp(rows, kRows) * ld, 0.0f);
}

// to[d][r] = from[r][d] of a loaded tile; lanes after the last row are zero.
void Transpose(const float* from, int64_t rows, int64_t head_dim, int64_t ld, float* to) {
  for (int64_t d = 0; d < head_dim; ++d) {
    for (int64_t r = 0; r < rows; ++r) to[d * kTile + r] = from[r * ld + d];
    Fill(to + d * kTile + rows, to + d * kTile + RoundUp(rows, kUnit), 0.0f);
  }
}

using Lanes = float[kTile];
using Matrix =
    float[kTile * kAttentionMaxHeadDim];  // [kTile, ld], or [head_dim, kTile] transposed.
using Square = float[kTile * kTile];

int64_t Ld(const AttentionHead& head) { return RoundUp(head.head_dim, kUnit); }

float Scale(const AttentionHead& head) {
  return 1.0f / __builtin_sqrtf(static_cast<float>(head.head_dim));
}

Tile TileAt(const AttentionHead& head, int64_t query, int64_t key) {
  return {Min(kTile, head.seq - key), Min(kTile, head.seq - query), query == key};
}

// Where the documents of a tile's queries begin.
void Starts(const AttentionHead& head, int64_t query, int64_t* start) {
  for (int64_t i = query; i < Min(head.seq, query + kTile); ++i) {
    start[i - query] = i - head.positions[i];
  }
}

// A tensor's rows for a product: in place where the product touches nothing beyond them.
bool InPlace(const AttentionHead& head, int64_t rows) {
  return head.head_dim % kUnit == 0 && rows % kRows == 0;
}

Rows InPlaceOr(const AttentionHead& head, const float* from, int64_t stride, int64_t rows,
               float* copy) {
  if (InPlace(head, rows)) return {from, stride};
  Load(from, stride, rows, head.head_dim, 1.0f, Ld(head), copy);
  return {copy, Ld(head)};
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

// Calls row(j, m) for each key of the tile, in order: m[i] is that of query i.
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

void ForwardHead(const AttentionHead& head, float* out, float* lse) {
  alignas(64) Matrix qt, kv, o;
  alignas(64) Square st;
  alignas(64) Lanes maximum, sum;
  int64_t start[kTile];
  const int64_t ld = Ld(head);
  for (int64_t query = 0; query < head.seq; query += kTile) {
    const int64_t queries = Min(kTile, head.seq - query);
    Load(head.q + query * head.q_stride, head.q_stride, queries, head.head_dim, Scale(head), ld,
         kv);
    Transpose(kv, queries, head.head_dim, ld, qt);
    // Not -infinity: a tile may hold nothing for a query, and then this is subtracted from itself.
    Fill(maximum, maximum + kTile, -__FLT_MAX__);
    Fill(sum, sum + kTile, 0.0f);
    Fill(o, o + kTile * ld, 0.0f);
    Starts(head, query, start);
    for (int64_t key = start[0] / kTile * kTile; key <= query; key += kTile) {
      const Tile tile = TileAt(head, query, key);
      const Rows k = InPlaceOr(head, head.k + key * head.k_stride, head.k_stride, tile.keys, kv);
      Scores(tile, k, qt, head.head_dim, st);
      Mask(tile, st);
      MaskDocuments(tile, start, key, st);
      RunningSoftmax(tile, ld, st, maximum, sum, o);
      if (head.drops) {
        ForEachDrawn(head.drop, tile, query, key, [&](int64_t j, const float* m) {
          float* p = st + j * kTile;
#pragma omp simd
          for (int64_t i = tile.FirstLane(j); i < tile.Lanes(); ++i) p[i] *= m[i];
        });
      }
      Load(head.v + key * head.v_stride, head.v_stride, tile.keys, head.head_dim, 1.0f, ld, kv);
      AddOverKeys(tile, st, {kv, ld}, ld, o);
    }
    for (int64_t q = 0; q < queries; ++q) {
      const float scale = 1.0f / sum[q];
      float* row = out + (query + q) * head.out_stride;
#pragma omp simd
      for (int64_t d = 0; d < head.head_dim; ++d) row[d] = scale * o[q * ld + d];
      lse[query + q] = maximum[q] + __builtin_logf(sum[q]);
    }
  }
}

// to[r] = scale from[r], or += .
void Store(const float* from, int64_t ld, int64_t rows, int64_t head_dim, float scale, bool add,
           float* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = to + r * stride;
    if (add) {
#pragma omp simd
      for (int64_t d = 0; d < head_dim; ++d) row[d] += scale * from[r * ld + d];
    } else {
#pragma omp simd
      for (int64_t d = 0; d < head_dim; ++d) row[d] = scale * from[r * ld + d];
    }
  }
}

void BackwardHead(const AttentionHead& head, const float* out, const float* lse, const float* dout,
                  bool first, HeadRows<float> dq_out, HeadRows<float> dk_out,
                  HeadRows<float> dv_out) {
  alignas(64) Matrix q, qt, dout_rows, dout_t, k, v_copy, dq, sum;
  alignas(64) Square st, dst;
  alignas(64) Lanes lse_lanes, dot_lanes;
  int64_t start[kTile];
  const int64_t ld = Ld(head), dim = head.head_dim;
  for (int64_t query = 0; query < head.seq; query += kTile) {
    const int64_t queries = Min(kTile, head.seq - query);
    Load(head.q + query * head.q_stride, head.q_stride, queries, dim, Scale(head), ld, q);
    Transpose(q, queries, dim, ld, qt);
    Load(dout + query * head.out_stride, head.out_stride, queries, dim, 1.0f, ld, dout_rows);
    Transpose(dout_rows, queries, dim, ld, dout_t);
    Fill(lse_lanes, lse_lanes + kTile, 0.0f);
    Fill(dot_lanes, dot_lanes + kTile, 0.0f);
    for (int64_t i = 0; i < queries; ++i) {
      const float* row = out + (query + i) * head.out_stride;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < dim; ++d) dot += row[d] * dout_rows[i * ld + d];
      dot_lanes[i] = dot;
      lse_lanes[i] = lse[query + i];
    }
    Fill(dq, dq + kTile * ld, 0.0f);
    Starts(head, query, start);
    for (int64_t key = start[0] / kTile * kTile; key <= query; key += kTile) {
      const Tile tile = TileAt(head, query, key);
      // The diagonal is the first that a tile of keys meets.
      const bool add = !tile.diagonal || !first;
      Load(head.k + key * head.k_stride, head.k_stride, tile.keys, dim, 1.0f, ld, k);
      Scores(tile, {k, ld}, qt, dim, st);
      Mask(tile, st);
      MaskDocuments(tile, start, key, st);
      const Rows v =
          InPlaceOr(head, head.v + key * head.v_stride, head.v_stride, tile.keys, v_copy);
      Scores(tile, v, dout_t, dim, dst);
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
      } else {
        for (int64_t j = 0; j < tile.keys; ++j) {
          float *p = st + j * kTile, *ds = dst + j * kTile;
#pragma omp simd
          for (int64_t i = tile.FirstLane(j); i < tile.Lanes(); ++i) {
            p[i] = Exp(p[i] - lse_lanes[i]);
            ds[i] = p[i] * (ds[i] - dot_lanes[i]);
          }
        }
      }
      AddOverKeys(tile, dst, {k, ld}, ld, dq);
      const HeadRows<float> dv{dv_out.data + key * dv_out.stride, dv_out.stride};
      const HeadRows<float> dk{dk_out.data + key * dk_out.stride, dk_out.stride};
      if (add && InPlace(head, tile.keys)) {
        SumOverQueries<true>(tile, st, dout_rows, ld, dv.data, dv.stride);
        SumOverQueries<true>(tile, dst, q, ld, dk.data, dk.stride);  // q is scaled already.
      } else {
        SumOverQueries<false>(tile, st, dout_rows, ld, sum, ld);
        Store(sum, ld, tile.keys, dim, 1.0f, add, dv.data, dv.stride);
        SumOverQueries<false>(tile, dst, q, ld, sum, ld);
        Store(sum, ld, tile.keys, dim, 1.0f, add, dk.data, dk.stride);
      }
    }
    Store(dq, ld, queries, dim, Scale(head), false, dq_out.data + query * dq_out.stride,
          dq_out.stride);
  }
}

}  // namespace

const AttentionKernels FSDP_ISA(kAttention) = {ForwardHead, BackwardHead};

}  // namespace fsdp
