// The arguments of a call that all kernels of attention read, forward and backward.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_CALL_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_CALL_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/cuda/attention/attention_draws.h"
#include "trainer/ops/cuda/attention/attention_tile.h"
#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {

// exp(x) is computed as exp2(x log2(e)): GPUs have an instruction for exp2.
inline constexpr float kLog2E = 1.4426950408889634f;

// Kernels are compiled twice: for a causal mask inside documents and nothing else, so that their
// loops test for no more; and for all calls.
enum class AttentionKind { kCausal, kAny };

// At least this many blocks per multiprocessor, so that nvcc does not spill registers to fit more;
// 0: nvcc decides.
template <AttentionKind kind>
inline constexpr int kAttentionBlocks = kind == AttentionKind::kAny ? 1 : 0;

struct AttentionCall {
  int batch, seq, keys, heads, group;
  bool causal;
  float scale;               // Multiplies q . k.
  const int32_t* positions;  // In kAny null where each row is one document.
  const int32_t* lengths;    // Null: all keys may be seen.
  bool drops;
  AttentionDraws draws;  // Without head and key.
  const int32_t* draw_keys;

  __device__ int Start(int sample, int query) const {
    return query - positions[static_cast<int64_t>(sample) * seq + query];
  }
  template <AttentionKind kind>
  __device__ bool Causal() const {
    return kind == AttentionKind::kCausal || causal;
  }
  template <AttentionKind kind>
  __device__ int StartOf(int sample, int query) const {
    return kind == AttentionKind::kCausal || positions != nullptr ? Start(sample, query) : 0;
  }
  // The number of a sample's keys that may be seen.
  template <AttentionKind kind>
  __device__ int Seen(int sample) const {
    if constexpr (kind == AttentionKind::kCausal) return seq;
    return lengths == nullptr ? keys : max(0, min(lengths[sample], keys));
  }
  // Whether a document's end hides the keys behind it.
  template <AttentionKind kind>
  __device__ bool HasEnds() const {
    return kind == AttentionKind::kAny && !causal && positions != nullptr;
  }
  // The number of rows begin, begin + step, ... before `end` whose document begins at `row` or
  // before. Documents begin in ascending order. Whole warps call it.
  template <AttentionKind kind>
  __device__ int StepsBegunBy(int sample, int row, int begin, int end, int step) const {
    int steps = 0;
    for (int found = kWarp; found == kWarp; steps += found) {
      const int64_t at = begin + (static_cast<int64_t>(steps) + Lane()) * step;
      found = WarpSum(at < end && StartOf<kind>(sample, static_cast<int>(at)) <= row ? 1 : 0);
    }
    return steps;
  }
  __device__ AttentionDraws DrawsOf(int sample, int head) const {
    AttentionDraws of = draws;
    if (!drops) return of;
    of.head = static_cast<uint32_t>(head);
    of.key[0] = static_cast<uint32_t>(draw_keys[2 * static_cast<int64_t>(sample)]);
    of.key[1] = static_cast<uint32_t>(draw_keys[2 * static_cast<int64_t>(sample) + 1]);
    return of;
  }
  // The first row of a head in lse and in dout . out.
  __device__ int64_t RowOfQueries(int sample, int head) const {
    return (static_cast<int64_t>(sample) * heads + head) * seq;
  }
};

// A bias added to scores, in powers of two. Only kAny has one.
template <typename T>
struct BiasCuda {
  const T* table;  // Null: none.
  const int32_t* buckets;
  int columns, seq, distances;

  // Also defined for rows of tiles beyond the last: they get some bias, which nobody reads.
  __device__ float At(int head, int query, int key) const {
    const int distance = max(0, min(key - query + seq - 1, distances - 1));
    return kLog2E * ToFloat(table[static_cast<int64_t>(head) * columns + buckets[distance]]);
  }
};

template <typename T>
BiasCuda<T> BiasOf(const AttentionDims& dims, const AttentionBias& bias) {
  if (!dims.bias) return {};
  return {reinterpret_cast<const T*>(bias.table.data), bias.buckets.As<int32_t>(),
          static_cast<int>(bias.table.shape[1]), static_cast<int>(dims.seq),
          static_cast<int>(dims.distances())};
}

// The block's tile, sample and head (of `heads`). Blocks go over the heads of a sample, then over
// samples, then over tiles.
struct AttentionPlace {
  int tile, sample, head;
  __device__ AttentionPlace(int batch, int heads)
      : tile(static_cast<int>(blockIdx.x / (static_cast<unsigned>(batch) * heads))),
        sample(static_cast<int>(blockIdx.x % (static_cast<unsigned>(batch) * heads) / heads)),
        head(static_cast<int>(blockIdx.x % heads)) {}
};

inline AttentionCall AttentionCallOf(const AttentionDims& dims, const AttentionInputs& in) {
  AttentionCall call{.batch = static_cast<int>(dims.batch),
                     .seq = static_cast<int>(dims.seq),
                     .keys = static_cast<int>(dims.keys),
                     .heads = static_cast<int>(dims.heads),
                     .group = static_cast<int>(dims.group()),
                     .causal = in.mask == AttentionMask::kCausal,
                     .scale = in.Scale(),
                     .positions = in.HasPositions() ? in.positions.As<int32_t>() : nullptr,
                     .lengths = in.HasLengths() ? in.lengths.As<int32_t>() : nullptr,
                     .drops = in.dropout.rate > 0,
                     .draws = {},
                     .draw_keys = nullptr};
  if (call.drops) {
    call.draws.threshold = static_cast<uint32_t>(std::ldexp(in.dropout.rate, 32));
    call.draws.scale = static_cast<float>(1 / (1 - in.dropout.rate));
    call.draws.site = in.dropout.site;
    call.draw_keys = in.dropout.keys.As<int32_t>();
  }
  return call;
}

// Calls f(Is<T>(), columns, kind), where tiles of `columns` columns hold head_dim elements.
template <typename Function>
void ForAttentionTiles(DType dtype, int64_t head_dim, const AttentionInputs& in,
                       const Function& f) {
  const auto of_kind = [&](auto is, auto columns) {
    using Kind = AttentionKind;
    if (in.mask == AttentionMask::kCausal && !in.HasLengths() && !in.HasBias()) {
      return f(is, columns, std::integral_constant<Kind, Kind::kCausal>());
    }
    return f(is, columns, std::integral_constant<Kind, Kind::kAny>());
  };
  ForFloat(dtype, [&](auto is) {
    if (head_dim <= 64) return of_kind(is, std::integral_constant<int, 64>());
    if (head_dim <= 128) return of_kind(is, std::integral_constant<int, 128>());
    return of_kind(is, std::integral_constant<int, 256>());
  });
}

// A grid with a block for each tile of `rows` rows, of the `all` rows that each head has.
inline dim3 AttentionGrid(const AttentionDims& dims, int64_t heads, int64_t all, int64_t rows) {
  return dim3(static_cast<unsigned>(CeilDiv(all, rows) * dims.batch * heads));
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_CALL_H_
