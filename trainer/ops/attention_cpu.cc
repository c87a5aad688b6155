// Scores are kept transposed, st[j][q]: keys are rows, queries are lanes. Then the maximum, the sum
// and the exponentials of a query run along rows of lanes with no horizontal step, and every
// product finds its right operand contiguous and its left one broadcast:
//   st   [j][q] = sum_d k[j][d]   qt [d][q]        o [q][d] += sum_j st[j][q] v[j][d]
//   dpt  [j][q] = sum_d v[j][d] dout_t[d][q]       dq[q][d] += sum_j dst[j][q] k[j][d]
//   dv   [j][d] = sum_q st[j][q]  dout[q][d]       dk[j][d]  = sum_q dst[j][q] q[q][d]
// Only queries (and dout) are transposed, once a tile of queries. A tile is 48 of either: 8 blocks
// of 6 rows and 3 of 16 lanes, one register block each, and three tiles fit in 32 KB at
// head_dim 64.
#include "trainer/ops/attention_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/vector_math.h"

namespace fsdp {
namespace {

constexpr int64_t kTile = 48;
constexpr int64_t kRows = 6, kLanes = 16;  // Of a register block: 12 of the 16 vector registers.

using Vector = float __attribute__((vector_size(32), aligned(4)));

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// c[6][16] (+)= sum_{i < k} a(row, i) b[i][16], where a(row, i) is a[row lda + i], or
// a[i lda + row] if transposed.
template <bool kTransposed, bool kAdd>
inline void MultiplyBlock(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k,
                          float* c, int64_t ldc) {
  Vector sum[kRows][2] = {};
  for (int64_t i = 0; i < k; ++i) {
    const auto* row = reinterpret_cast<const Vector*>(b + i * ldb);
    const Vector b0 = row[0], b1 = row[1];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vector x = (kTransposed ? a[i * lda + r] : a[r * lda + i]) - Vector{};
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    auto* out = reinterpret_cast<Vector*>(c + r * ldc);
    out[0] = kAdd ? out[0] + sum[r][0] : sum[r][0];
    out[1] = kAdd ? out[1] + sum[r][1] : sum[r][1];
  }
}

// A tile of scores. On the diagonal only queries from j on attend to key j: products leave out the
// blocks of 6 keys that no query of a block needs.
struct Tile {
  int64_t keys, queries;  // Valid ones.
  bool diagonal;

  // The first lane that is computed in the row of key j.
  int64_t FirstLane(int64_t j) const { return diagonal ? j / kRows * kRows / kLanes * kLanes : 0; }
  int64_t Lanes() const { return RoundUp(queries, kLanes); }
};

// out[j][q] = sum_d rows[j][d] lanes[d][q].
void Scores(const Tile& tile, const float* rows, const float* lanes, int64_t head_dim, int64_t ld,
            float* out) {
  for (int64_t j = 0; j < tile.keys; j += kRows) {
    for (int64_t q = tile.FirstLane(j); q < tile.queries; q += kLanes) {
      MultiplyBlock<false, false>(rows + j * ld, ld, lanes + q, kTile, head_dim,
                                  out + j * kTile + q, kTile);
    }
  }
}

// out[q][d] += sum_j weights[j][q] rows[j][d].
void AddOverKeys(const Tile& tile, const float* weights, const float* rows, int64_t ld,
                 float* out) {
  for (int64_t d = 0; d < ld; d += kLanes) {
    for (int64_t q = 0; q < tile.queries; q += kRows) {
      const int64_t keys = tile.diagonal ? std::min(tile.keys, q + kRows) : tile.keys;
      MultiplyBlock<true, true>(weights + q, kTile, rows + d, ld, keys, out + q * ld + d, ld);
    }
  }
}

// out[j][d] = sum_q weights[j][q] rows[q][d].
void SumOverQueries(const Tile& tile, const float* weights, const float* rows, int64_t ld,
                    float* out) {
  for (int64_t d = 0; d < ld; d += kLanes) {
    for (int64_t j = 0; j < tile.keys; j += kRows) {
      const int64_t first = tile.diagonal ? j : 0;
      MultiplyBlock<false, false>(weights + j * kTile + first, kTile, rows + first * ld + d, ld,
                                  tile.queries - first, out + j * ld + d, ld);
    }
  }
}

// Where key j must not be seen by query q. exp() makes exact zeros of it.
void Mask(const Tile& tile, float* st) {
  if (!tile.diagonal) return;
  for (int64_t j = 0; j < tile.keys; ++j) {
    std::fill(st + j * kTile + tile.FirstLane(j), st + j * kTile + j,
              -std::numeric_limits<float>::infinity());
  }
}

// The same where key j, of the tile that begins at `key`, lies before the document of query q.
// `start` is where the queries' documents begin: in ascending order.
void MaskDocuments(const Tile& tile, const int64_t* start, int64_t key, float* st) {
  if (tile.queries == 0 || start[tile.queries - 1] <= key) return;
  int64_t lane = 0;  // The first whose document begins after key j.
  for (int64_t j = 0; j < tile.keys; ++j) {
    while (lane < tile.queries && start[lane] <= key + j) ++lane;
    std::fill(st + j * kTile + lane, st + j * kTile + tile.Lanes(),
              -std::numeric_limits<float>::infinity());
  }
}

// to[r][d] = scale from[r][d], [kTile, ld]: the rest of the rows and columns that blocks touch is
// zero.
void Load(const float* from, int64_t stride, int64_t rows, int64_t head_dim, float scale,
          int64_t ld, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t d = 0; d < head_dim; ++d) to[r * ld + d] = scale * from[r * stride + d];
    std::fill(to + r * ld + head_dim, to + (r + 1) * ld, 0.0f);
  }
  std::fill(to + rows * ld, to + RoundUp(rows, kRows) * ld, 0.0f);
}

// to[d][r] = from[r][d] of a loaded tile; lanes after the last row are zero.
void Transpose(const float* from, int64_t rows, int64_t head_dim, int64_t ld, float* to) {
  for (int64_t d = 0; d < head_dim; ++d) {
    for (int64_t r = 0; r < rows; ++r) to[d * kTile + r] = from[r * ld + d];
    std::fill(to + d * kTile + rows, to + d * kTile + RoundUp(rows, kLanes), 0.0f);
  }
}

// One sample's head of queries, with the keys and values of its group.
struct Head {
  const float *q, *k, *v;
  const int32_t* positions;
  int64_t q_stride, k_stride, v_stride;
  int64_t seq, head_dim, out_stride;
  int64_t out_offset, lse_offset;  // Of the head, in elements.

  Head(const AttentionDims& dims, const AttentionData& in, int64_t sample, int64_t head)
      : positions(in.positions + sample * dims.seq),
        q_stride(in.q.stride),
        k_stride(in.k.stride),
        v_stride(in.v.stride),
        seq(dims.seq),
        head_dim(dims.head_dim),
        out_stride(dims.heads * dims.head_dim) {
    const int64_t kv_head = head / dims.group();
    q = in.q.data + sample * seq * q_stride + head * head_dim;
    k = in.k.data + sample * seq * k_stride + kv_head * head_dim;
    v = in.v.data + sample * seq * v_stride + kv_head * head_dim;
    out_offset = sample * seq * out_stride + head * head_dim;
    lse_offset = (sample * dims.heads + head) * seq;
  }

  int64_t ld() const { return RoundUp(head_dim, kLanes); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
  Tile At(int64_t query, int64_t key) const {
    return {.keys = std::min(kTile, seq - key),
            .queries = std::min(kTile, seq - query),
            .diagonal = query == key};
  }
  // Where the documents of a tile's queries begin.
  void Starts(int64_t query, int64_t* start) const {
    for (int64_t i = query; i < std::min(seq, query + kTile); ++i) {
      start[i - query] = i - positions[i];
    }
  }
};

using Lanes = float[kTile];
using Matrix = float[kTile * kMaxHeadDim];  // [kTile, ld], or [head_dim, kTile] transposed.
using Square = float[kTile * kTile];

// st becomes exp(st - maximum); o, maximum and sum are brought to the new maximum.
void RunningSoftmax(const Tile& tile, int64_t ld, float* st, float* maximum, float* sum, float* o) {
  alignas(64) Lanes before;
  std::copy(maximum, maximum + kTile, before);
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

void ForwardHead(const Head& head, float* out, float* lse) {
  alignas(64) Matrix qt, kv, o;
  alignas(64) Square st;
  alignas(64) Lanes maximum, sum;
  int64_t start[kTile];
  const int64_t ld = head.ld();
  for (int64_t query = 0; query < head.seq; query += kTile) {
    const int64_t queries = std::min(kTile, head.seq - query);
    Load(head.q + query * head.q_stride, head.q_stride, queries, head.head_dim, head.scale(), ld,
         kv);
    Transpose(kv, queries, head.head_dim, ld, qt);
    // Not -infinity: a tile may hold nothing for a query, and then this is subtracted from itself.
    std::fill(maximum, maximum + kTile, -std::numeric_limits<float>::max());
    std::fill(sum, sum + kTile, 0.0f);
    std::fill(o, o + kTile * ld, 0.0f);
    head.Starts(query, start);
    for (int64_t key = start[0] / kTile * kTile; key <= query; key += kTile) {
      const Tile tile = head.At(query, key);
      Load(head.k + key * head.k_stride, head.k_stride, tile.keys, head.head_dim, 1.0f, ld, kv);
      Scores(tile, kv, qt, head.head_dim, ld, st);
      Mask(tile, st);
      MaskDocuments(tile, start, key, st);
      RunningSoftmax(tile, ld, st, maximum, sum, o);
      Load(head.v + key * head.v_stride, head.v_stride, tile.keys, head.head_dim, 1.0f, ld, kv);
      AddOverKeys(tile, st, kv, ld, o);
    }
    for (int64_t q = 0; q < queries; ++q) {
      const float scale = 1.0f / sum[q];
      float* row = out + (query + q) * head.out_stride;
#pragma omp simd
      for (int64_t d = 0; d < head.head_dim; ++d) row[d] = scale * o[q * ld + d];
      lse[query + q] = maximum[q] + std::log(sum[q]);
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

// dk_out and dv_out are overwritten where `first` of the group, else added to.
void BackwardHead(const Head& head, const float* out, const float* lse, const float* dout,
                  bool first, HeadRows<float> dq_out, HeadRows<float> dk_out,
                  HeadRows<float> dv_out) {
  alignas(64) Matrix q, qt, dout_rows, dout_t, k, v, dq, sum;
  alignas(64) Square st, dst;
  alignas(64) Lanes lse_lanes, dot_lanes;
  int64_t start[kTile];
  const int64_t ld = head.ld(), dim = head.head_dim;
  for (int64_t query = 0; query < head.seq; query += kTile) {
    const int64_t queries = std::min(kTile, head.seq - query);
    Load(head.q + query * head.q_stride, head.q_stride, queries, dim, head.scale(), ld, q);
    Transpose(q, queries, dim, ld, qt);
    Load(dout + query * head.out_stride, head.out_stride, queries, dim, 1.0f, ld, dout_rows);
    Transpose(dout_rows, queries, dim, ld, dout_t);
    std::fill(lse_lanes, lse_lanes + kTile, 0.0f);
    std::fill(dot_lanes, dot_lanes + kTile, 0.0f);
    for (int64_t i = 0; i < queries; ++i) {
      const float* row = out + (query + i) * head.out_stride;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < dim; ++d) dot += row[d] * dout_rows[i * ld + d];
      dot_lanes[i] = dot;
      lse_lanes[i] = lse[query + i];
    }
    std::fill(dq, dq + kTile * ld, 0.0f);
    head.Starts(query, start);
    for (int64_t key = start[0] / kTile * kTile; key <= query; key += kTile) {
      const Tile tile = head.At(query, key);
      // The diagonal is the first that a tile of keys meets.
      const bool add = !tile.diagonal || !first;
      Load(head.k + key * head.k_stride, head.k_stride, tile.keys, dim, 1.0f, ld, k);
      Load(head.v + key * head.v_stride, head.v_stride, tile.keys, dim, 1.0f, ld, v);
      Scores(tile, k, qt, dim, ld, st);
      Mask(tile, st);
      MaskDocuments(tile, start, key, st);
      Scores(tile, v, dout_t, dim, ld, dst);
      for (int64_t j = 0; j < tile.keys; ++j) {
        float *p = st + j * kTile, *ds = dst + j * kTile;
#pragma omp simd
        for (int64_t i = tile.FirstLane(j); i < tile.Lanes(); ++i) {
          p[i] = Exp(p[i] - lse_lanes[i]);
          ds[i] = p[i] * (ds[i] - dot_lanes[i]);
        }
      }
      AddOverKeys(tile, dst, k, ld, dq);
      SumOverQueries(tile, st, dout_rows, ld, sum);
      Store(sum, ld, tile.keys, dim, 1.0f, add, dv_out.data + key * dv_out.stride, dv_out.stride);
      SumOverQueries(tile, dst, q, ld, sum);  // q is scaled already.
      Store(sum, ld, tile.keys, dim, 1.0f, add, dk_out.data + key * dk_out.stride, dk_out.stride);
    }
    Store(dq, ld, queries, dim, head.scale(), false, dq_out.data + query * dq_out.stride,
          dq_out.stride);
  }
}

void CheckPositions(const AttentionDims& dims, const int32_t* positions) {
  for (int64_t b = 0; b < dims.batch; ++b) {
    const int32_t* row = positions + b * dims.seq;
    for (int64_t i = 0; i < dims.seq; ++i) {
      if (row[i] == 0 || (i > 0 && row[i] == row[i - 1] + 1)) continue;
      throw DataError("position " + std::to_string(row[i]) + " of token " + std::to_string(i) +
                      " in row " + std::to_string(b) + ", want 0 or one more than before");
    }
  }
}

HeadRows<float> At(const HeadRows<float>& rows, const AttentionDims& dims, int64_t sample,
                   int64_t head) {
  return {rows.data + sample * dims.seq * rows.stride + head * dims.head_dim, rows.stride};
}

}  // namespace

void AttentionForwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionData& in,
                         float* out, float* lse) {
  CheckPositions(dims, in.positions);
  pool.ParallelFor(dims.batch * dims.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Head head(dims, in, i / dims.heads, i % dims.heads);
      ForwardHead(head, out + head.out_offset, lse + head.lse_offset);
    }
  });
}

void AttentionBackwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionData& in,
                          const float* out, const float* lse, const float* dout, HeadRows<float> dq,
                          HeadRows<float> dk, HeadRows<float> dv) {
  CheckPositions(dims, in.positions);
  const int64_t groups = dims.heads > 0 ? dims.kv_heads : 0;
  pool.ParallelFor(dims.batch * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / groups, kv_head = i % groups;
      for (int64_t g = 0; g < dims.group(); ++g) {
        const int64_t h = kv_head * dims.group() + g;
        const Head head(dims, in, sample, h);
        BackwardHead(head, out + head.out_offset, lse + head.lse_offset, dout + head.out_offset,
                     g == 0, At(dq, dims, sample, h), At(dk, dims, sample, kv_head),
                     At(dv, dims, sample, kv_head));
      }
    }
  });
}

}  // namespace fsdp
