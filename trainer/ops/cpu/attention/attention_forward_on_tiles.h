// Attention of one head of bf16 on tiles, forward (attention_on_tiles.h).
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_FORWARD_ON_TILES_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_FORWARD_ON_TILES_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_bf16_rows.h"
#include "trainer/ops/cpu/attention/attention_drop.h"
#include "trainer/ops/cpu/attention/attention_factors.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/attention/attention_softmax.h"
#include "trainer/ops/cpu/attention/attention_weights.h"
#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/gemm/tile_product.h"

namespace fsdp {
namespace {

struct ForwardFactors {
  PackedFactor k, v_turned;  // Left ones, of all keys.

  ForwardFactors(Memory& memory, int64_t keys, int64_t dim)
      : k(PackedFactor::In(memory, keys, dim)), v_turned(PackedFactor::In(memory, dim, keys)) {}
};

int64_t ForwardMemoryOnTiles(int64_t, int64_t keys, int64_t head_dim) {
  Memory memory(nullptr);
  ForwardFactors(memory, keys, head_dim);
  return memory.floats();
}

// The instruction set's Kernel: Tiles and Rounding.
template <typename Kernel>
void ForwardOnTiles(const AttentionHeadBf16& head, bool first, float* memory, Element* out,
                    float* lse) {
  const WithoutSubnormals mode;
  typename Kernel::Tiles tiles;
  alignas(64) char q_data[kBlock * kAttentionMaxHeadDim * kElement];
  alignas(64) float o[kAttentionMaxHeadDim * kBlock];
  alignas(64) Square st;
  Softmax softmax;
  WeightPairs pairs;
  Memory parts(memory);
  const int64_t dim = head.head_dim, depth = RoundUp(dim, 16);
  const ForwardFactors factors(parts, head.keys, dim);
  if (first) {
    factors.k.Pack<false>(RowsOf(head.k, head.k_stride), head.seen, dim);
    factors.v_turned.Pack<false>(Turned(RowsOf(head.v, head.v_stride)), dim, head.seen);
  }
  const PackedFactor q{q_data, Steps(dim) * kStepBytes};
  const float scale = head.scale * kLog2E;
  for (int64_t query = 0; query < head.seq; query += kBlock) {
    const int64_t queries = Least(kBlock, head.seq - query), columns = RoundUp(queries, kGroup);
    q.Pack<true>(RowsOf(head.q + query * head.q_stride, head.q_stride), queries, dim);
    Fill(softmax.maximum, softmax.maximum + kBlock, -__FLT_MAX__);  // As in attention_bf16.h.
    Fill(softmax.sum, softmax.sum + kBlock, 0.0f);
    const Span<ScoreBlock> span(head, query);
    if (span.begin >= span.end) Fill(o, o + depth * kBlock, 0.0f);
    for (int64_t key = span.begin; key < span.end; key += kBlock) {
      const auto block = TileAt<ScoreBlock>(head, query, key);
      MultiplyPanels(
          tiles, RoundUp(block.keys, 16), columns, Steps(dim),
          [&](int64_t j) { return factors.k.Left(key + j); }, q.data, q.panel, st, kBlock, false);
      BiasAndMask(head, span, block, query, key, st);
      if (head.drops) {
        Weigh<typename Kernel::Rounding, true>(block, scale, st, &softmax, nullptr);
        Drop(head, block, query, key, st);
        PutWeights<typename Kernel::Rounding>(block, st, nullptr, &pairs);
      } else {
        Weigh<typename Kernel::Rounding, false>(block, scale, st, &softmax, &pairs);
      }
      if (key > span.begin) Rescale(softmax, depth, columns, o);
      MultiplyPanels(
          tiles, depth, columns, Steps(block.keys),
          [&](int64_t d) { return factors.v_turned.Left(d, key); }, pairs.at,
          kBlockSteps * kStepBytes, o, kBlock, key > span.begin);
    }
    alignas(64) Lanes inverse;
    for (int64_t i = 0; i < queries; ++i) {
      inverse[i] = Inverse(head, span, i, softmax.sum);
      lse[query + i] = span.starts[i] < head.seen
                           ? kLn2 * softmax.maximum[i] + __builtin_logf(softmax.sum[i])
                           : 0.0f;
    }
    StoreTurned(o, dim, queries, inverse, out + query * head.out_stride, head.out_stride);
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_FORWARD_ON_TILES_H_
