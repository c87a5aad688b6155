// Attention of one head of bf16 over tiles (attention_tile.h). Factors of products are bf16: q, k,
// v and dout as they are, probabilities and ds rounded to it. A product sums pairs (gemm_pairs.h)
// in the order of their index, and each tile's sum is added to the earlier ones. Scores, statistics
// and ds are computed in fp32. No step depends on the width of vectors.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BF16_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BF16_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_bf16_rows.h"
#include "trainer/ops/cpu/attention/attention_drop.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/attention/attention_tile.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// Products with fused multiply-adds of floats: the odd element of a pair is its first step.
struct SwappedFloats {
  using Step = uint32_t;
  static constexpr int64_t kPair = 2;  // Steps.
  static constexpr int64_t Steps(int64_t n) { return (n + 1) / 2 * kPair; }
  static FSDP_ALWAYS_INLINE Vector MulAdd(Vector left, Vector right, Vector sum) {
    return sum + left * right;
  }
  // A pair whose steps are `step` apart.
  static FSDP_ALWAYS_INLINE void Put(uint16_t even, uint16_t odd, Step* to, int64_t step) {
    to[0] = static_cast<Step>(odd) << 16;
    to[step] = static_cast<Step>(even) << 16;
  }
  // n pairs one after another.
  static FSDP_ALWAYS_INLINE void PutPairs(const uint16_t* from, int64_t n, Step* to) {
#pragma omp simd
    for (int64_t e = 0; e < n; ++e) Put(from[2 * e], from[2 * e + 1], to + kPair * e, 1);
  }
  // Rounds kLanes pairs of floats, and puts them with steps apart as in Put().
  static FSDP_ALWAYS_INLINE void Round(Vector even, Vector odd, Step* to, int64_t step) {
    StoreVector(to, (Vector)RoundedToBf16(odd));
    StoreVector(to + step, (Vector)RoundedToBf16(even));
  }
  // Rounds kLanes floats, and puts them as pairs one after another.
  static FSDP_ALWAYS_INLINE void RoundRow(Vector x, Step* to) {
    typedef uint64_t Pairs __attribute__((vector_size(sizeof(Bits))));
    const auto pairs = (Pairs)RoundedToBf16(x);
    StoreVector(to, (Vector)(pairs >> 32 | pairs << 32));
  }
};

// to[r] = the pairs of row r, up to a multiple of kRows rows; rows beyond the last are zero.
template <typename Factor>
void PackRows(const Element* from, int64_t stride, int64_t rows, int64_t cols,
              typename Factor::Step* to) {
  const int64_t ld = Factor::Steps(cols);
  for (int64_t r = 0; r < rows; ++r) {
    const Element* x = from + r * stride;
    typename Factor::Step* row = to + r * ld;
    Factor::PutPairs(x, cols / 2, row);
    if (cols % 2 != 0) Factor::Put(x[cols - 1], 0, row + cols / 2 * Factor::kPair, 1);
  }
  for (int64_t i = rows * ld; i < RoundUp(rows, kRows) * ld; ++i) to[i] = 0;
}

// to = pairs of rows: [Steps(rows), ld], zero where there is no row or column.
template <typename Factor>
void PackPairs(const Element* from, int64_t stride, int64_t rows, int64_t cols, int64_t ld,
               typename Factor::Step* to) {
  static constexpr Element kZero[kAttentionMaxHeadDim] = {};
  for (int64_t r = 0; r < rows; r += 2, to += Factor::kPair * ld) {
    const Element* even = from + r * stride;
    const Element* odd = r + 1 < rows ? even + stride : kZero;
#pragma omp simd
    for (int64_t d = 0; d < cols; ++d) Factor::Put(even[d], odd[d], to + d, ld);
    for (int64_t d = cols; d < ld; ++d) Factor::Put(0, 0, to + d, ld);
  }
}

// A tile's weights, rounded, as pairs of keys: [Steps(keys), kTile]. An odd last key is paired with
// zero.
template <typename Factor>
void PackByKeys(const Tile& tile, const float* st, typename Factor::Step* to) {
  static_assert(kRows % 2 == 0);  // So both keys have the same first lane.
  for (int64_t j = 0; j < tile.keys; j += 2, to += Factor::kPair * kTile) {
    const float* row = st + j * kTile;
    const bool odd = j + 1 < tile.keys;
    for (int64_t q = tile.FirstLane(j); q < tile.Lanes(); q += kLanes) {
      Factor::Round(LoadVector(row + q), odd ? LoadVector(row + kTile + q) : Vector{}, to + q,
                    kTile);
    }
  }
}

// A tile's weights as pairs of queries: [keys, Steps(kTile)].
template <typename Factor>
void PackByQueries(const Tile& tile, float* st, typename Factor::Step* to) {
  for (int64_t j = 0; j < tile.keys; ++j) {
    float* row = st + j * kTile;
    if (tile.queries % 2 != 0) row[tile.queries] = 0;
    for (int64_t q = tile.FirstLane(j); q < tile.Lanes(); q += kLanes) {
      Factor::RoundRow(LoadVector(row + q), to + j * Factor::Steps(kTile) + Factor::Steps(q));
    }
  }
}

// A tile of rows: [kTile, ld] in rows or pairs of rows, [Steps(head_dim), kTile] transposed.
template <typename Factor>
using StepTile = typename Factor::Step[kTile * kAttentionMaxHeadDim];

// Steps of a head's rows of k or v, as the left factor of scores or in pairs of rows.
template <typename Factor>
int64_t RowSteps(int64_t keys, int64_t head_dim) {
  return RoundUp(keys, kRows) * Factor::Steps(head_dim);
}

template <typename Factor>
int64_t PairSteps(int64_t keys, int64_t head_dim) {
  return Factor::Steps(keys) * RoundUp(head_dim, kUnit);
}

// Floats of the sums for dk or dv.
int64_t SumFloats(int64_t keys, int64_t head_dim) {
  return RoundUp(keys, kRows) * RoundUp(head_dim, kUnit);
}

template <typename Factor>
int64_t ForwardMemory(int64_t, int64_t keys, int64_t head_dim) {
  return RowSteps<Factor>(keys, head_dim) + PairSteps<Factor>(keys, head_dim);
}

template <typename Factor>
int64_t BackwardMemory(int64_t, int64_t keys, int64_t head_dim) {
  return 2 * RowSteps<Factor>(keys, head_dim) + PairSteps<Factor>(keys, head_dim) +
         2 * SumFloats(keys, head_dim);
}

template <typename Factor>
void ForwardBf16(const AttentionHeadBf16& head, bool first, float* memory, Element* out,
                 float* lse) {
  alignas(64) StepTile<Factor> rows, qt;
  alignas(64) float o[kTile * kAttentionMaxHeadDim];
  alignas(64) Square st;
  alignas(64) typename Factor::Step p[kTile * kTile];
  alignas(64) Lanes maximum, sum;
  const int64_t ld = Ld(head), dim = head.head_dim, steps = Factor::Steps(dim);
  auto* const k_rows = reinterpret_cast<typename Factor::Step*>(memory);
  auto* const v_pairs = k_rows + RowSteps<Factor>(head.keys, dim);
  if (first) {
    PackRows<Factor>(head.k, head.k_stride, head.seen, dim, k_rows);
    PackPairs<Factor>(head.v, head.v_stride, head.seen, dim, ld, v_pairs);
  }
  for (int64_t query = 0; query < head.seq; query += kTile) {
    const int64_t queries = Min(kTile, head.seq - query);
    PackRows<Factor>(head.q + query * head.q_stride, head.q_stride, queries, dim, rows);
    Transpose(rows, queries, steps, steps, qt);
    // Not -infinity: a tile may hold no key for a query, and then the maximum is subtracted from
    // itself.
    Fill(maximum, maximum + kTile, -__FLT_MAX__);
    Fill(sum, sum + kTile, 0.0f);
    Fill(o, o + kTile * ld, 0.0f);
    const Span<Tile> span(head, query);
    for (int64_t key = span.begin; key < span.end; key += kTile) {
      const Tile tile = TileAt<Tile>(head, query, key);
      Scores<Factor, Sums::kScaled>(tile, {k_rows + key * steps, steps}, qt, steps, st, head.scale);
      AddBias(head, tile, query, key, st);
      MaskAll(head, span, tile, key, st);
      RunningSoftmax(tile, ld, st, maximum, sum, o);
      Drop(head, tile, query, key, st);
      PackByKeys<Factor>(tile, st, p);
      AddOverKeys<Factor>(tile, p, {v_pairs + Factor::Steps(key) * ld, ld}, ld, o);
    }
    for (int64_t q = 0; q < queries; ++q) {
      StoreRow(o + q * ld, Inverse(head, span, q, sum), dim, out + (query + q) * head.out_stride);
      lse[query + q] = LogSum(head, span, q, maximum, sum);
    }
  }
}

template <typename Factor>
void BackwardBf16(const AttentionHeadBf16& head, bool first, bool last, float* memory,
                  const Element* out, const float* lse, const Element* dout, HeadRows<Element> dq,
                  HeadRows<Element> dk, HeadRows<Element> dv) {
  alignas(64) StepTile<Factor> rows, qt, dout_t, q_pairs, dout_pairs;
  alignas(64) float dq_sum[kTile * kAttentionMaxHeadDim];
  alignas(64) Square st, dst;
  alignas(64) typename Factor::Step weights[kTile * kTile];
  alignas(64) Lanes lse_lanes, dot_lanes;
  const int64_t ld = Ld(head), dim = head.head_dim, steps = Factor::Steps(dim);
  float* const dk_sum = memory;
  float* const dv_sum = dk_sum + SumFloats(head.keys, dim);
  auto* const k_rows = reinterpret_cast<typename Factor::Step*>(dv_sum + SumFloats(head.keys, dim));
  auto* const v_rows = k_rows + RowSteps<Factor>(head.keys, dim);
  auto* const k_pairs = v_rows + RowSteps<Factor>(head.keys, dim);
  ClearBiasSums(head);
  if (first) {
    PackRows<Factor>(head.k, head.k_stride, head.seen, dim, k_rows);
    PackRows<Factor>(head.v, head.v_stride, head.seen, dim, v_rows);
    PackPairs<Factor>(head.k, head.k_stride, head.seen, dim, ld, k_pairs);
    if (!head.causal) Fill(dk_sum, dk_sum + 2 * SumFloats(head.keys, dim), 0.0f);
  }
  for (int64_t query = 0; query < head.seq; query += kTile) {
    const int64_t queries = Min(kTile, head.seq - query);
    const Element* const q_rows = head.q + query * head.q_stride;
    const Element* const dout_rows = dout + query * head.out_stride;
    PackRows<Factor>(q_rows, head.q_stride, queries, dim, rows);
    Transpose(rows, queries, steps, steps, qt);
    PackPairs<Factor>(q_rows, head.q_stride, queries, dim, ld, q_pairs);
    PackRows<Factor>(dout_rows, head.out_stride, queries, dim, rows);
    Transpose(rows, queries, steps, steps, dout_t);
    PackPairs<Factor>(dout_rows, head.out_stride, queries, dim, ld, dout_pairs);
    Fill(lse_lanes, lse_lanes + kTile, 0.0f);
    Fill(dot_lanes, dot_lanes + kTile, 0.0f);
    for (int64_t i = 0; i < queries; ++i) {
      dot_lanes[i] = Dot(out + (query + i) * head.out_stride, dout_rows + i * head.out_stride, dim);
      lse_lanes[i] = lse[query + i];
    }
    Fill(dq_sum, dq_sum + kTile * ld, 0.0f);
    const Span<Tile> span(head, query);
    for (int64_t key = span.begin; key < span.end; key += kTile) {
      const Tile tile = TileAt<Tile>(head, query, key);
      Scores<Factor, Sums::kScaled>(tile, {k_rows + key * steps, steps}, qt, steps, st, head.scale);
      AddBias(head, tile, query, key, st);
      MaskAll(head, span, tile, key, st);
      Scores<Factor, Sums::kStored>(tile, {v_rows + key * steps, steps}, dout_t, steps, dst);
      ScoreGradients(head, tile, query, key, lse_lanes, dot_lanes, st, dst);
      SumBias(head, tile, query, key, dst);
      PackByKeys<Factor>(tile, dst, weights);
      AddOverKeys<Factor>(tile, weights, {k_pairs + Factor::Steps(key) * ld, ld}, ld, dq_sum);
      // Under a causal mask the diagonal is the first tile of queries that a tile of keys meets.
      const auto add = [&](float* by_query, const typename Factor::Step* pairs, float* to) {
        PackByQueries<Factor>(tile, by_query, weights);
        if (tile.diagonal && first) {
          SumOverQueries<Factor, Sums::kStored>(tile, weights, pairs, ld, to + key * ld, ld);
        } else {
          SumOverQueries<Factor, Sums::kAdded>(tile, weights, pairs, ld, to + key * ld, ld);
        }
      };
      add(st, dout_pairs, dv_sum);
      add(dst, q_pairs, dk_sum);
    }
    for (int64_t i = 0; i < queries; ++i) {
      StoreRow(dq_sum + i * ld, head.scale, dim, dq.data + (query + i) * dq.stride);
    }
  }
  if (!last) return;
  // Blocks of rows reach beyond the last row that is seen.
  Fill(dk_sum + head.seen * ld, dk_sum + head.keys * ld, 0.0f);
  Fill(dv_sum + head.seen * ld, dv_sum + head.keys * ld, 0.0f);
  for (int64_t j = 0; j < head.keys; ++j) {
    StoreRow(dk_sum + j * ld, head.scale, dim, dk.data + j * dk.stride);
    StoreRow(dv_sum + j * ld, 1, dim, dv.data + j * dv.stride);
  }
}

template <typename Factor>
constexpr AttentionKernelsBf16 kBf16 = {ForwardMemory<Factor>, BackwardMemory<Factor>,
                                        ForwardBf16<Factor>, BackwardBf16<Factor>};

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BF16_H_
