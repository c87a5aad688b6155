// Attention of one head of bf16 on tiles, backward (attention_on_tiles.h).
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BACKWARD_ON_TILES_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BACKWARD_ON_TILES_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_bf16_rows.h"
#include "trainer/ops/cpu/attention/attention_factors.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/attention/attention_softmax.h"
#include "trainer/ops/cpu/attention/attention_weights.h"
#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/gemm/tile_product.h"

namespace fsdp {
namespace {

// The keys whose sums stay in a second-level cache while all queries pass by: what is made of
// queries is read once for so many.
constexpr int64_t kKeptKeys = 512, kKeptFloats = 32 << 10;

void PrepareQueries(const AttentionHeadBf16& head, const Element* out, const float* lse,
                    const Element* dout, const BackwardFactors& to) {
  const int64_t dim = head.head_dim;
  const TileFactor q = RowsOf(head.q, head.q_stride), of_dout = RowsOf(dout, head.out_stride);
  to.q.Pack<true>(q, head.seq, dim);
  to.dout.Pack<true>(of_dout, head.seq, dim);
  for (int64_t query = 0; query < head.seq; query += kBlock) {
    const int64_t queries = Least(kBlock, head.seq - query), block = query / kBlock;
    const auto turn = [&](const PackedFactor& all, TileFactor x) {
      x.data += query * x.next_i;
      const PackedFactor part{all.data + block * Parts(dim, kPanel) * all.panel, all.panel};
      part.Pack<true>(Turned(x), dim, queries);
    };
    turn(to.q_turned, q);
    turn(to.dout_turned, of_dout);
    QueryStatistics& of = to.statistics[block];
    of = {};
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = (query + i) * head.out_stride;
      of.lse[i] = lse[query + i] * kLog2E;
      of.dot[i] = Dot(out + row, dout + row, dim);
    }
  }
}

// A head's way through its blocks.
template <typename Kernel>
struct BackwardPass {
  const AttentionHeadBf16& head;
  const BackwardFactors& x;
  bool first;  // The group's first head: the sums of dk and dv begin with it.
  typename Kernel::Tiles tiles = {};
  WeightsAndGradients weights = {};
  alignas(64) Square st, dst;  // Scores, and what becomes their gradient.

  int64_t dim() const { return head.head_dim; }
  int64_t depth() const { return RoundUp(dim(), 16); }
  float* Dk(int64_t key) const { return x.dk + key * depth(); }
  float* Dv(int64_t key) const { return x.dv + key * depth(); }
  float* Dq(int64_t query) const { return x.dq + query * depth(); }

  // to[keys, dim] (+)= by[keys, queries] of[queries, dim].
  void AddOverQueries(const ScoreBlock& block, const WeightRows& by, const PackedFactor& of,
                      int64_t query, float* to, bool add) {
    const auto left = [&](int64_t j) {
      return PanelOfA{reinterpret_cast<const char*>(by.at + j * kBlock), kBlock * kElement,
                      kTileRow};
    };
    const char* const right = of.data + query / kBlock * Parts(dim(), kPanel) * of.panel;
    MultiplyPanels(tiles, RoundUp(block.keys, 16), depth(), Steps(block.queries), left, right,
                   of.panel, to, depth(), add);
  }

  void Weigh(const Span<ScoreBlock>& span, const ScoreBlock& block, int64_t query, int64_t key) {
    using Rounding = typename Kernel::Rounding;
    const int64_t columns = RoundUp(block.queries, kGroup), keys = RoundUp(block.keys, 16);
    MultiplyPanels(
        tiles, keys, columns, Steps(dim()), [&](int64_t j) { return x.k.Left(key + j); },
        x.q.Right(query), x.q.panel, st, kBlock, false);
    BiasAndMask(head, span, block, query, key, st);
    MultiplyPanels(
        tiles, keys, columns, Steps(dim()), [&](int64_t j) { return x.v.Left(key + j); },
        x.dout.Right(query), x.dout.panel, dst, kBlock, false);
    const float scale = head.scale * kLog2E;
    const QueryStatistics& of = x.statistics[query / kBlock];
    if (!head.drops && head.bias_sums == nullptr) {
      return WeighBackward<Rounding>(block, scale, of, st, dst, &weights);
    }
    WeighBackwardInPlace(head, block, query, key, scale, of, st, dst);
    SumBias(head, block, query, key, dst);
    PutWeights<Rounding>(block, st, &weights.p, nullptr);
    PutWeights<Rounding>(block, dst, &weights.ds, &weights.ds_pairs);
  }

  // `begun`: the keys' sums have terms.
  void Block(const Span<ScoreBlock>& span, int64_t query, int64_t key, bool begun) {
    const auto block = TileAt<ScoreBlock>(head, query, key);
    Weigh(span, block, query, key);
    MultiplyPanels(
        tiles, depth(), RoundUp(block.queries, kGroup), Steps(block.keys),
        [&](int64_t d) { return x.k_turned.Left(d, key); }, weights.ds_pairs.at,
        kBlockSteps * kStepBytes, Dq(query), kBlock, key > span.begin);
    AddOverQueries(block, weights.p, x.dout_turned, query, Dv(key), begun);
    AddOverQueries(block, weights.ds, x.q_turned, query, Dk(key), begun);
    if (!begun) ClearKeys(key + RoundUp(block.keys, 16), key + kBlock);  // Out of sight.
  }

  void ClearKeys(int64_t begin, int64_t end) {
    Fill(Dk(begin), Dk(end), 0.0f);
    Fill(Dv(begin), Dv(end), 0.0f);
  }

  // All that [begin, end) of the keys give and get.
  void Keys(int64_t begin, int64_t end) {
    bool begun[kKeptKeys / kBlock];
    for (bool& has : begun) has = !first;
    for (int64_t query = head.causal ? begin : 0; query < head.seq; query += kBlock) {
      const Span<ScoreBlock> span(head, query);
      const int64_t last = Least(end, span.end);
      for (int64_t key = begin < span.begin ? span.begin : begin; key < last; key += kBlock) {
        bool& has = begun[(key - begin) / kBlock];
        Block(span, query, key, has);
        has = true;
      }
    }
    for (int64_t key = begin; key < end; key += kBlock) {
      if (!begun[(key - begin) / kBlock]) ClearKeys(key, key + kBlock);
    }
  }
};

template <typename Kernel>
void BackwardOnTiles(const AttentionHeadBf16& head, bool first, bool last, float* memory,
                     const Element* out, const float* lse, const Element* dout,
                     HeadRows<Element> dq, HeadRows<Element> dk, HeadRows<Element> dv) {
  const WithoutSubnormals mode;
  Memory parts(memory);
  const int64_t dim = head.head_dim, depth = RoundUp(dim, 16);
  const BackwardFactors x(parts, head.seq, head.keys, dim);
  if (first) {
    x.k.Pack<false>(RowsOf(head.k, head.k_stride), head.seen, dim);
    x.v.Pack<false>(RowsOf(head.v, head.v_stride), head.seen, dim);
    x.k_turned.Pack<false>(Turned(RowsOf(head.k, head.k_stride)), dim, head.seen);
  }
  PrepareQueries(head, out, lse, dout, x);
  ClearBiasSums(head);
  BackwardPass<Kernel> pass{.head = head, .x = x, .first = first, .st = {}, .dst = {}};
  const int64_t kept = Least(kKeptKeys, kKeptFloats / depth / kBlock * kBlock);
  for (int64_t key = 0; key < head.keys; key += kept) {
    const int64_t end = Least(head.keys, key + kept);
    pass.Keys(key, end);
    if (last && head.seen < end) pass.ClearKeys(head.seen > key ? head.seen : key, end);
    for (int64_t j = key; last && j < end; ++j) {
      StoreRow(pass.Dk(j), head.scale, dim, dk.data + j * dk.stride);
      StoreRow(pass.Dv(j), 1, dim, dv.data + j * dv.stride);
    }
  }
  alignas(64) Lanes scales;
  Fill(scales, scales + kBlock, head.scale);
  for (int64_t query = 0; query < head.seq; query += kBlock) {
    const Span<ScoreBlock> span(head, query);
    if (span.begin >= span.end) Fill(pass.Dq(query), pass.Dq(query + kBlock), 0.0f);
    StoreTurned(pass.Dq(query), dim, Least(kBlock, head.seq - query), scales,
                dq.data + query * dq.stride, dq.stride);
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BACKWARD_ON_TILES_H_
