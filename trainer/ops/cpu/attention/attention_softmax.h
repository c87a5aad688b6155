// Scores become weights of attention on tiles, forward and backward. For sources that are compiled
// once for each instruction set (isa.h); no result depends on the width of vectors.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_SOFTMAX_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_SOFTMAX_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_drop.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/attention/attention_weights.h"
#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// A query's greatest score so far, in logarithms to base 2, the sum of its weights, and what sums
// are to be multiplied by now because the greatest score has changed.
struct alignas(64) Softmax {
  Lanes maximum, sum, factor;
};

// The unit's part of the statistics before a block's weights are summed.
FSDP_ALWAYS_INLINE void RaiseMaximum(const ScoreBlock& block, float scale, const float* st,
                                     int64_t q, Softmax* softmax, Vector (&now)[2],
                                     Vector (&sum)[2]) {
  Vector most[2][2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) most[i / 2][i % 2] = All(-__builtin_inff());
  const auto raise = [&](int64_t j, int odd) __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      most[odd][v] = Greater(LoadVector(st + j * kBlock + q + v * kLanes), most[odd][v]);
    }
  };
  int64_t j = 0;
  for (; j + 1 < block.keys; j += 2) raise(j, 0), raise(j + 1, 1);
  if (j < block.keys) raise(j, 0);
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const int64_t at = q + v * kLanes;
    const Vector before = LoadVector(softmax->maximum + at);
    now[v] = Greater(Greater(most[0][v], most[1][v]) * scale, before);
    const Vector factor = Exp2(before - now[v]);
    sum[v] = LoadVector(softmax->sum + at) * factor;
    StoreVector(softmax->maximum + at, now[v]);
    StoreVector(softmax->factor + at, factor);
  }
}

// Scores st become weights, exp2(scale st - maximum): in pairs of keys, or with kInPlace in st.
template <typename Rounding, bool kInPlace>
void Weigh(const ScoreBlock& block, float scale, float* st, Softmax* softmax, WeightPairs* pairs) {
  for (int64_t q = 0; q < RoundUp(block.queries, kGroup); q += kUnitQueries) {
    Vector now[2], sum[2];
    RaiseMaximum(block, scale, st, q, softmax, now, sum);
    for (int64_t j = 0; j < RoundUp(block.keys, kStepK); j += 2) {
      Vector p[2][2] = {};
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        if (j + odd >= block.keys) break;
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          float* const at = st + (j + odd) * kBlock + q + v * kLanes;
          p[odd][v] = Exp2(LoadVector(at) * scale - now[v]);
          sum[v] += p[odd][v];
          if (kInPlace) StoreVector(at, p[odd][v]);
        }
      }
      if (kInPlace) continue;
      PutPairs(Rounding::Two(p[0][0], p[0][1]), Rounding::Two(p[1][0], p[1][1]), j, q, pairs->at);
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) StoreVector(softmax->sum + q + v * kLanes, sum[v]);
  }
}

// Brings the sums o[depth, kBlock] to the new maximum.
void Rescale(const Softmax& softmax, int64_t depth, int64_t columns, float* o) {
  alignas(64) Lanes factor;
  bool raised = false;
  for (int64_t q = 0; q < columns; ++q) raised |= softmax.factor[q] != 1.0f;
  if (!raised) return;
  for (int64_t q = 0; q < columns; q += kGroup) ToColumns(softmax.factor + q, factor + q);
  for (int64_t d = 0; d < depth; ++d, o += kBlock) {
#pragma omp simd
    for (int64_t q = 0; q < columns; ++q) o[q] *= factor[q];
  }
}

// A block of queries gives this to its weights in backward: lse to base 2, and dot = dout . out.
struct alignas(64) QueryStatistics {
  Lanes lse, dot;
};

// p = exp2(scale st - lse) and ds = p (dst - dot).
struct WeightsAndGradients {
  WeightRows p, ds;
  WeightPairs ds_pairs;
};

// From scores st and dst = dout . v.
template <typename Rounding>
void WeighBackward(const ScoreBlock& block, float scale, const QueryStatistics& of, const float* st,
                   const float* dst, WeightsAndGradients* to) {
  for (int64_t q = 0; q < RoundUp(block.queries, kGroup); q += kUnitQueries) {
    const Vector lse[2] = {LoadVector(of.lse + q), LoadVector(of.lse + q + kLanes)};
    const Vector dot[2] = {LoadVector(of.dot + q), LoadVector(of.dot + q + kLanes)};
    for (int64_t j = 0; j < RoundUp(block.keys, kStepK); j += 2) {
      Halves p_row[2] = {}, ds_row[2] = {};
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        if (j + odd >= block.keys) break;
        Vector p[2], ds[2];
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const int64_t at = (j + odd) * kBlock + q + v * kLanes;
          p[v] = Exp2(LoadVector(st + at) * scale - lse[v]);
          ds[v] = p[v] * (LoadVector(dst + at) - dot[v]);
        }
        p_row[odd] = Rounding::Two(p[0], p[1]);
        ds_row[odd] = Rounding::Two(ds[0], ds[1]);
      }
      PutRows(p_row[0], p_row[1], j, q, &to->p);
      PutRows(ds_row[0], ds_row[1], j, q, &to->ds);
      PutPairs(ds_row[0], ds_row[1], j, q, to->ds_pairs.at);
    }
  }
}

// The same in place and as floats, with dropout's m: st becomes m p, and dst p (m dst - dot).
void WeighBackwardInPlace(const AttentionHeadBf16& head, const ScoreBlock& block, int64_t query,
                          int64_t key, float scale, const QueryStatistics& of, float* st,
                          float* dst) {
  const auto weigh = [&](int64_t j, const auto& factor) __attribute__((always_inline)) {
    for (int64_t q = 0; q < RoundUp(block.queries, kGroup); q += kLanes) {
      const int64_t at = j * kBlock + q;
      const Vector p = Exp2(LoadVector(st + at) * scale - LoadVector(of.lse + q)), m = factor(q);
      StoreVector(dst + at, p * (m * LoadVector(dst + at) - LoadVector(of.dot + q)));
      StoreVector(st + at, m * p);
    }
  };
  if (head.drops) {
    ForEachDrawn(head.drop, block, query, key, [&](int64_t j, const float* m) {
      weigh(j, [m](int64_t q) { return LoadVector(m + q); });
    });
  } else {
    for (int64_t j = 0; j < block.keys; ++j) weigh(j, [](int64_t) { return All(1.0f); });
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_SOFTMAX_H_
