// Packed factors of attention's products on tiles, for sources that define what is done to a tile.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_FACTORS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_FACTORS_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_bf16_rows.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/attention/attention_softmax.h"
#include "trainer/ops/cpu/attention/attention_weights.h"
#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/gemm/tile_plan.h"
#include "trainer/ops/cpu/gemm/tile_product.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int64_t kPanel = 32;  // Rows or columns that are packed together.
constexpr int64_t kBlockSteps = kBlock / kStepK;

// Where the parts of a head's memory lie: bytes from a cache line.
class Memory {
 public:
  explicit Memory(float* memory)
      : begin_(reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64)),
        at_(begin_) {}
  char* Take(int64_t bytes) {
    char* const part = at_;
    at_ += RoundUp(bytes, 64);
    return part;
  }
  float* TakeFloats(int64_t n) { return reinterpret_cast<float*>(Take(n * 4)); }
  // Floats of memory for all that was taken, wherever it begins.
  int64_t floats() const { return (at_ - begin_) / 4 + 16; }

 private:
  char *begin_, *at_;
};

// x[rows, cols] of bf16 as a factor: panels of 32 rows, each with its steps of 32 columns.
struct PackedFactor {
  char* data = nullptr;
  int64_t panel = 0;  // Bytes from a panel to the next.

  static PackedFactor In(Memory& memory, int64_t rows, int64_t cols) {
    const int64_t panel = RoundUp(cols, kStepK) / kStepK * kStepBytes;
    return {memory.Take(RoundUp(rows, kPanel) / kPanel * panel), panel};
  }
  // Element [i, l] lies at data + i next_i + l next_k; a right factor if kAsB.
  template <bool kAsB>
  void Pack(const TileFactor& x, int64_t rows, int64_t cols) const {
    for (int64_t i = 0; i < rows; i += kPanel) {
      PackPanel<kAsB>({x.data + i * x.next_i, x.next_i, x.next_k}, rows - i, cols,
                      data + i / kPanel * panel);
    }
  }
  PanelOfA Left(int64_t i, int64_t l = 0) const {
    return {data + i / kPanel * panel + l / kStepK * kStepBytes, kTileRow, kStepBytes};
  }
  const char* Right(int64_t j) const { return data + j / kPanel * panel; }
};

// Rows of a tensor's head: x[i, d].
TileFactor RowsOf(const Element* x, int64_t stride) {
  return {reinterpret_cast<const char*>(x), stride * kElement, kElement};
}

TileFactor Turned(const TileFactor& x) { return {x.data, x.next_k, x.next_i}; }

// sums[rows, cols] (+)= a[rows, k] b[k, cols], `steps` of k. `left`(i): the panel of rows i.
template <typename Tiles, typename Left>
FSDP_ALWAYS_INLINE void MultiplyPanels(Tiles& tiles, int64_t rows, int64_t cols, int64_t steps,
                                       const Left& left, const char* right, int64_t right_panel,
                                       float* sums, int64_t next_row, bool add) {
  for (int64_t i = 0; i < rows; i += kPanel) {
    Strip(tiles, left(i), Least(rows - i, kPanel), right, right_panel, cols, steps,
          sums + i * next_row, next_row, add, [](int64_t, int64_t) {});
  }
}

int64_t Steps(int64_t n) { return Parts(n, kStepK); }

// sums[dim, kBlock], whose columns are queries in the order of QueryOf(), become rows of a tensor,
// each times its factor.
void StoreTurned(const float* sums, int64_t dim, int64_t rows, const float* factors, Element* to,
                 int64_t stride) {
  alignas(64) float turned[16 * 16];
  for (int64_t column = 0; column < kBlock; column += 16) {
    const int64_t group = column / kGroup * kGroup;
    if (group >= rows) return;
    for (int64_t d = 0; d < dim; d += 16) {
      TurnPairs(reinterpret_cast<const char*>(sums + d * kBlock + column), kBlock * 4,
                reinterpret_cast<char*>(turned));
      for (int64_t c = 0; c < 16; ++c) {
        const int64_t row = group + QueryOf(column % kGroup + c);
        if (row >= rows) continue;
        StoreRow(turned + 16 * c, factors[row], Least(dim - d, 16), to + row * stride + d);
      }
    }
  }
}

// Backward's factors, of a group's keys and a head's queries, and its sums.
struct BackwardFactors {
  // Left ones of all keys; k_turned[dim, keys].
  PackedFactor k, v, k_turned;
  // Right ones of all queries: [queries, dim], and turned by blocks, [blocks][dim, kBlock].
  PackedFactor q, dout, q_turned, dout_turned;
  float *dk, *dv;               // [keys, depth], of a group.
  float* dq;                    // [blocks][depth, kBlock], of a head.
  QueryStatistics* statistics;  // A block each.

  BackwardFactors(Memory& memory, int64_t seq, int64_t keys, int64_t dim)
      : k(PackedFactor::In(memory, keys, dim)),
        v(PackedFactor::In(memory, keys, dim)),
        k_turned(PackedFactor::In(memory, dim, keys)),
        q(PackedFactor::In(memory, seq, dim)),
        dout(PackedFactor::In(memory, seq, dim)) {
    const int64_t blocks = Parts(seq, kBlock), depth = RoundUp(dim, 16);
    q_turned = PackedFactor::In(memory, blocks * RoundUp(dim, kPanel), kBlock);
    dout_turned = PackedFactor::In(memory, blocks * RoundUp(dim, kPanel), kBlock);
    dk = memory.TakeFloats(RoundUp(keys, kBlock) * depth);
    dv = memory.TakeFloats(RoundUp(keys, kBlock) * depth);
    dq = memory.TakeFloats(blocks * depth * kBlock);
    statistics = reinterpret_cast<QueryStatistics*>(memory.Take(blocks * sizeof(QueryStatistics)));
  }
};

int64_t BackwardMemoryOnTiles(int64_t seq, int64_t keys, int64_t head_dim) {
  Memory memory(nullptr);
  BackwardFactors(memory, seq, keys, head_dim);
  return memory.floats();
}

// Scores of masked keys become -infinity; biases are added before, as if scale multiplied them.
FSDP_ALWAYS_INLINE void BiasAndMask(const AttentionHeadBf16& head, const Span<ScoreBlock>& span,
                                    const ScoreBlock& block, int64_t query, int64_t key,
                                    float* st) {
  AddBias(head, block, query, key, st, 1 / head.scale);
  MaskAll(head, span, block, key, st);
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_FACTORS_H_
