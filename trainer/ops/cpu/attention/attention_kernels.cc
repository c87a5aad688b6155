#include "trainer/ops/cpu/attention/attention_kernels.h"

#include "trainer/ops/cpu/attention/attention_bf16.h"
#include "trainer/ops/cpu/attention/attention_drop.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/attention/attention_tile.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

struct Floats {
  using Step = float;
  static constexpr int64_t Steps(int64_t n) { return n; }
  static FSDP_ALWAYS_INLINE Vector MulAdd(Vector left, Vector right, Vector sum) {
    return sum + left * right;
  }
};

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

using Matrix =
    float[kTile * kAttentionMaxHeadDim];  // [kTile, ld], or [head_dim, kTile] transposed.

// A tensor's rows for a product: in place where the product touches nothing beyond them.
bool InPlace(const AttentionHead& head, int64_t rows) {
  return head.head_dim % kUnit == 0 && rows % kRows == 0;
}

Rows<Floats> InPlaceOr(const AttentionHead& head, const float* from, int64_t stride, int64_t rows,
                       float* copy) {
  if (InPlace(head, rows)) return {from, stride};
  Load(from, stride, rows, head.head_dim, 1.0f, Ld(head), copy);
  return {copy, Ld(head)};
}

void ForwardHead(const AttentionHead& head, float* out, float* lse) {
  alignas(64) Matrix qt, kv, o;
  alignas(64) Square st;
  alignas(64) Lanes maximum, sum;
  const int64_t ld = Ld(head);
  for (int64_t query = 0; query < head.seq; query += kTile) {
    const int64_t queries = Min(kTile, head.seq - query);
    Load(head.q + query * head.q_stride, head.q_stride, queries, head.head_dim, head.scale, ld, kv);
    Transpose(kv, queries, head.head_dim, ld, qt);
    // Not -infinity: a tile may hold nothing for a query, and then this is subtracted from itself.
    Fill(maximum, maximum + kTile, -__FLT_MAX__);
    Fill(sum, sum + kTile, 0.0f);
    Fill(o, o + kTile * ld, 0.0f);
    const Span<Tile> span(head, query);
    for (int64_t key = span.begin; key < span.end; key += kTile) {
      const Tile tile = TileAt<Tile>(head, query, key);
      const Rows<Floats> k =
          InPlaceOr(head, head.k + key * head.k_stride, head.k_stride, tile.keys, kv);
      Scores<Floats, Sums::kStored>(tile, k, qt, head.head_dim, st);
      AddBias(head, tile, query, key, st);
      MaskAll(head, span, tile, key, st);
      RunningSoftmax(tile, ld, st, maximum, sum, o);
      Drop(head, tile, query, key, st);
      Load(head.v + key * head.v_stride, head.v_stride, tile.keys, head.head_dim, 1.0f, ld, kv);
      AddOverKeys<Floats>(tile, st, {kv, ld}, ld, o);
    }
    for (int64_t q = 0; q < queries; ++q) {
      const float scale = Inverse(head, span, q, sum);
      float* row = out + (query + q) * head.out_stride;
#pragma omp simd
      for (int64_t d = 0; d < head.head_dim; ++d) row[d] = scale * o[q * ld + d];
      lse[query + q] = LogSum(head, span, q, maximum, sum);
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

void Clear(const HeadRows<float>& to, int64_t begin, int64_t end, int64_t head_dim) {
  for (int64_t r = begin; r < end; ++r) {
    Fill(to.data + r * to.stride, to.data + r * to.stride + head_dim, 0.0f);
  }
}

void BackwardHead(const AttentionHead& head, const float* out, const float* lse, const float* dout,
                  bool first, HeadRows<float> dq_out, HeadRows<float> dk_out,
                  HeadRows<float> dv_out) {
  alignas(64) Matrix q, qt, dout_rows, dout_t, k, v_copy, dq, sum;
  alignas(64) Square st, dst;
  alignas(64) Lanes lse_lanes, dot_lanes;
  const int64_t ld = Ld(head), dim = head.head_dim;
  ClearBiasSums(head);
  if (first) {
    // The rows that the diagonal does not store to.
    const int64_t begin = head.causal ? head.seen : 0;
    Clear(dk_out, begin, head.keys, dim);
    Clear(dv_out, begin, head.keys, dim);
  }
  for (int64_t query = 0; query < head.seq; query += kTile) {
    const int64_t queries = Min(kTile, head.seq - query);
    Load(head.q + query * head.q_stride, head.q_stride, queries, dim, head.scale, ld, q);
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
    const Span<Tile> span(head, query);
    for (int64_t key = span.begin; key < span.end; key += kTile) {
      const Tile tile = TileAt<Tile>(head, query, key);
      // Under a causal mask the diagonal is the first that a tile of keys meets.
      const bool add = !tile.diagonal || !first;
      Load(head.k + key * head.k_stride, head.k_stride, tile.keys, dim, 1.0f, ld, k);
      Scores<Floats, Sums::kStored>(tile, {k, ld}, qt, dim, st);
      AddBias(head, tile, query, key, st);
      MaskAll(head, span, tile, key, st);
      const Rows<Floats> v =
          InPlaceOr(head, head.v + key * head.v_stride, head.v_stride, tile.keys, v_copy);
      Scores<Floats, Sums::kStored>(tile, v, dout_t, dim, dst);
      ScoreGradients(head, tile, query, key, lse_lanes, dot_lanes, st, dst);
      SumBias(head, tile, query, key, dst);
      AddOverKeys<Floats>(tile, dst, {k, ld}, ld, dq);
      const HeadRows<float> dv{dv_out.data + key * dv_out.stride, dv_out.stride};
      const HeadRows<float> dk{dk_out.data + key * dk_out.stride, dk_out.stride};
      if (add && InPlace(head, tile.keys)) {
        SumOverQueries<Floats, Sums::kAdded>(tile, st, dout_rows, ld, dv.data, dv.stride);
        SumOverQueries<Floats, Sums::kAdded>(tile, dst, q, ld, dk.data,
                                             dk.stride);  // q is scaled already.
      } else {
        SumOverQueries<Floats, Sums::kStored>(tile, st, dout_rows, ld, sum, ld);
        Store(sum, ld, tile.keys, dim, 1.0f, add, dv.data, dv.stride);
        SumOverQueries<Floats, Sums::kStored>(tile, dst, q, ld, sum, ld);
        Store(sum, ld, tile.keys, dim, 1.0f, add, dk.data, dk.stride);
      }
    }
    Store(dq, ld, queries, dim, head.scale, false, dq_out.data + query * dq_out.stride,
          dq_out.stride);
  }
}

}  // namespace

const AttentionKernels FSDP_ISA(kAttention) = {ForwardHead, BackwardHead};
const AttentionKernelsBf16 FSDP_ISA(kAttentionFloats) = kBf16<SwappedFloats>;

}  // namespace fsdp
